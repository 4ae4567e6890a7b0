# SPDX-License-Identifier: Apache-2.0
"""Python's collector of garbage in a process of ours."""

import gc


def freeze_heap() -> None:
    """Never again look for garbage among what there is now.

    Most of it stays for as long as the process does: modules, routes, what is known of the tables. To look through all
    of it stops every thread, for more than a tenth of a second at each reading of a large lake.
    """
    gc.collect()
    gc.freeze()
