# SPDX-License-Identifier: Apache-2.0
"""For processes under libfaketime, whose 0.9.10 answers Python's own ``time.sleep`` with EINVAL.

On the path of modules of such a process; Python imports it by this name when it starts.
"""

import select
import time


def _sleep(seconds: float) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)


time.sleep = _sleep
