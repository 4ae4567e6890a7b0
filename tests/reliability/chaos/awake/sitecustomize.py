# SPDX-License-Identifier: Apache-2.0
"""Python's ``time.sleep`` in a process under libfaketime.

Python 3.11 sleeps until a moment of the monotonic clock. libfaketime 0.9.10 takes that for a moment of the clock which
it fakes, also where it is told to leave the monotonic one alone: each sleep fails with "Invalid argument", and with it
the start of a JVM. What waits for a span is not touched.
"""

import select
import time


def _sleep(seconds: float) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)


time.sleep = _sleep
