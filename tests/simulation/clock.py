# SPDX-License-Identifier: Apache-2.0
"""Virtual time: processes whose threads are greenlets, one of which runs at a time, woken in the order of a heap.

``Threads`` and ``Time`` replace the modules ``threading`` and ``time`` in the executors' code. A killed process does
nothing more, not even its ``finally`` blocks; a suspended process continues later at the same point.
"""

import heapq
from collections.abc import Callable
from typing import Any

from greenlet import greenlet


class Killed(BaseException):
    """The process of this thread was killed: raised at its next call of anything simulated."""


class Process:
    """One operating system process. Its host's clock is ``skew`` seconds ahead."""

    def __init__(self, name: str, skew: float = 0.0) -> None:
        self.name, self.skew = name, skew
        self.dead = False
        #: begin and end of the last suspension, which the process does not notice
        self.asleep_since = self.asleep_until = 0.0
        self.tasks: list[Task] = []
        #: the retention of its rounds of cleaning and of the tables' services, in seconds
        self.retention = self.services_retention = 0.0
        #: locks that exclude only its own threads; only planted defects use them
        self.locks: dict[str, Any] = {}

    def __str__(self) -> str:
        return self.name

    def sleeps(self, now: float, seconds: float) -> None:
        """Suspend the process for ``seconds`` from ``now``; a longer present suspension is not shortened."""
        if self.asleep_until <= now:
            self.asleep_since = now
        self.asleep_until = max(self.asleep_until, now + seconds)


class Task:
    """A thread. ``waiting`` is the number of its current wait: the heap's entries for earlier waits are ignored."""

    __slots__ = ("done", "greenlet", "process", "waiting", "watchers")

    def __init__(self, process: Process, run: Callable[[], object], hub: greenlet) -> None:
        def body() -> None:
            try:
                run()
            except Killed:
                pass
            finally:
                self.done = True

        self.process, self.waiting, self.done = process, 0, False
        self.greenlet = greenlet(body, parent=hub)
        self.watchers: list[Task] = []


class Scheduler:
    """Runs the thread that is due next. ``now`` is the true time and the database's, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.current: Task | None = None
        self._heap: list[tuple[float, int, int, Task]] = []
        self._order = 0
        self._hub: greenlet | None = None
        self._until = 0.0
        self._stopped = False

    def spawn(self, process: Process, run: Callable[[], object], after: float = 0.0) -> Task:
        """Create a thread of ``process``, which begins after ``after`` seconds."""
        task = Task(process, run, self._hub or greenlet.getcurrent())
        process.tasks.append(task)
        self._push(task, self.now + after)
        return task

    def sleep(self, seconds: float) -> None:
        """Let other threads run for ``seconds``. Raises Killed if this thread's process was killed meanwhile."""
        task = self.current
        assert task is not None
        process = task.process
        if process.dead:
            raise Killed
        at, heap = self.now + seconds, self._heap
        if at <= self._until and (not heap or at < heap[0][0]) and process.asleep_until <= at:
            self.now = at  # no other thread is due before
            return
        task.waiting += 1
        self._push(task, at)
        following = self._next()
        if following is not task:
            self.current = following
            (self._hub if following is None else following.greenlet).switch()  # type: ignore[union-attr]
        if process.dead:
            raise Killed

    def wake(self, task: Task) -> None:
        """Continue a waiting thread now."""
        if not task.done:
            self._push(task, self.now)

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL does. The caller continues unless it is one of its threads."""
        process.dead = True
        for task in process.tasks:
            if not task.done and task is not self.current:
                self._push(task, self.now)
        if self.current is not None and self.current.process is process:
            raise Killed

    def stop(self) -> None:
        """End the run at once; the calling thread does not continue."""
        self._stopped = True
        if self.current is not None:
            self.current.process.dead = True
            raise Killed

    def run(self, until: float) -> None:
        """Run until the virtual time ``until``, or until no thread waits."""
        self._hub, self._until = greenlet.getcurrent(), until
        while (task := self._next()) is not None:
            self.current = task
            task.greenlet.switch()  # returns when a thread ends, or when no thread is due
        self.current = None
        self.now = max(self.now, until)

    def _next(self) -> Task | None:
        """Return the thread that is due next and set the time to its own; None if no thread is due before the end."""
        heap, until = self._heap, self._until
        while heap and heap[0][0] <= until and not self._stopped:
            at, _, waiting, task = heapq.heappop(heap)
            if task.done or waiting != task.waiting:
                continue
            process = task.process
            if process.asleep_until > at and not process.dead:
                self._push(task, process.asleep_until)
                continue
            if at > self.now:
                self.now = at
            return task
        return None

    def end(self) -> None:
        """Kill every thread that still waits, so that none outlives this run."""
        tasks = {id(entry[3]): entry[3] for entry in self._heap}
        self._heap.clear()
        for task in tasks.values():
            task.process.dead = True
        for task in tasks.values():
            while not task.done and task.greenlet:
                self.current = task
                task.greenlet.switch()
        self.current = None

    def _push(self, task: Task, at: float) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, task.waiting, task))


class Waiters:
    """The threads that wait until another thread wakes them or their time is over."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tasks: list[Task] = []

    def wait(self, seconds: float) -> None:
        """Wait for this time, or until ``wake`` is called."""
        task = self._scheduler.current
        assert task is not None
        self._tasks.append(task)
        try:
            self._scheduler.sleep(seconds)
        finally:
            self._tasks.remove(task)

    def wake(self) -> None:
        """Continue all waiting threads now."""
        for task in self._tasks:
            self._scheduler.wake(task)


class Event:
    """``threading.Event``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._set, self._waiters = False, Waiters(scheduler)

    def is_set(self) -> bool:
        """See threading."""
        return self._set

    def set(self) -> None:
        """See threading."""
        self._set = True
        self._waiters.wake()

    def wait(self, timeout: float = 1e9) -> bool:
        """See threading."""
        if not self._set:
            self._waiters.wait(timeout)
        return self._set


class Lock:
    """``threading.Lock`` as a context manager."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._held, self._waiters = False, Waiters(scheduler)

    def __enter__(self) -> None:
        while self._held:
            self._waiters.wait(1e9)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        self._waiters.wake()


class Thread:
    """``threading.Thread`` in the process of the thread that creates it."""

    def __init__(
        self,
        scheduler: Scheduler,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool | None = None,
    ) -> None:
        self._scheduler, self._run = scheduler, lambda: target(*args)
        self._ended = Event(scheduler)
        assert scheduler.current is not None
        self._process = scheduler.current.process

    def start(self) -> None:
        """See threading."""

        def run() -> None:
            try:
                self._run()
            finally:
                self._ended.set()

        self._scheduler.spawn(self._process, run)

    def join(self, timeout: float | None = None) -> None:
        """See threading."""
        self._ended.wait(1e9 if timeout is None else timeout)


class Threads:
    """Replaces the module ``threading``. ``scheduler`` is that of the present run."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()

    def Event(self) -> Event:  # noqa: N802 - as in threading
        """See threading."""
        return Event(self.scheduler)

    def Lock(self) -> Lock:  # noqa: N802 - as in threading
        """See threading."""
        return Lock(self.scheduler)

    def Thread(self, **arguments: Any) -> Thread:  # noqa: N802 - as in threading
        """See threading."""
        return Thread(self.scheduler, **arguments)


class Time:
    """Replaces the module ``time``."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def monotonic(self) -> float:
        """See time."""
        return self._threads.scheduler.now

    def time(self) -> float:
        """See time."""
        return self._threads.scheduler.now

    def sleep(self, seconds: float) -> None:
        """See time."""
        self._threads.scheduler.sleep(seconds)
