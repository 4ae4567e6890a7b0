# SPDX-License-Identifier: Apache-2.0
"""The settings of Python's garbage collector in the daemon."""

import gc


def freeze_heap() -> None:
    """Exclude all current objects from later garbage collections.

    Most of them live as long as the process: modules, routes, the states of the tables. Traversing them stops every
    thread, for more than a tenth of a second at each reading of a large lake.
    """
    gc.collect()
    gc.freeze()
