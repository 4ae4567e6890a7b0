# SPDX-License-Identifier: Apache-2.0
"""Python's ``time.sleep`` in a process under libfaketime.

Python 3.11 sleeps until a moment of the monotonic clock. libfaketime 0.9.10 treats this moment as one of the clock that
it fakes, even if it is told to leave the monotonic clock alone. Each sleep then fails with "Invalid argument", and so
does the start of a JVM. Functions that wait for a period are not affected.
"""

import select
import time


def _sleep(seconds: float) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)


time.sleep = _sleep
