# SPDX-License-Identifier: Apache-2.0
"""The signals of a daemon.

SIGHUP reloads the configuration. The first SIGTERM or SIGINT lets running plans finish, the second one stops them, and
the third one ends the process at once.
"""

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

logger = logging.getLogger(__name__)


def install(*, drain: Callable[[], None], abort: Callable[[], None], reload: Callable[[], None]) -> None:
    """Let the first SIGTERM or SIGINT call ``drain``, the second ``abort``, and each SIGHUP ``reload``.

    Call this in the main thread.
    """
    received = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        repeated = received > 1
        if repeated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        # In a new thread, because the interrupted main thread may hold the lock that is needed to set an event.
        threading.Thread(target=handle_signal, args=(signal.Signals(number).name, repeated)).start()

    def handle_signal(name: str, repeated: bool) -> None:
        if repeated:
            logger.warning("%s again: stopping the current plans; a third signal ends the process at once", name)
            abort()
        else:
            logger.info("%s: finishing the current plans; send it again to stop them", name)
            drain()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGHUP, lambda number, frame: threading.Thread(target=reload, name="reload").start())
