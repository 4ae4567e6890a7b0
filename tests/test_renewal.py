# SPDX-License-Identifier: Apache-2.0
"""The renewer of leases, locks and roles, in virtual time: what it knows when a process or an answer is late."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

import pytest
from simulation.clock import Process, Threads, Time

from lake import renewal, stopwatch
from lake.errors import LeaseLost
from lake.logfields import current_log_fields, log_fields
from lake.renewal import Renewer
from service.control.leadership import leader_lease

INTERVAL, VALIDITY = 10.0, 30.0


class Grantor:
    """What grants: it counts requests, and answers after ``takes`` seconds what ``says`` returns."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self.asked: list[float] = []
        self.takes = 0.0
        self.says: Callable[[], str | None] = lambda: None
        self.fields: list[object] = []
        self.under_way = self.most_at_once = 0

    def renew(self) -> str | None:
        self.asked.append(self._threads.scheduler.now)
        self.fields.append(dict(current_log_fields()))
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        if self.takes:
            self._threads.scheduler.sleep(self.takes)
        self.under_way -= 1
        return self.says()


class Simulated:
    """One process in virtual time, and a grantor."""

    def __init__(self, threads: Threads) -> None:
        self.threads, self.time = threads, Time(threads)
        self.process, self.grantor = Process("p"), Grantor(threads)

    def renewer(self, *, validity: float | None = VALIDITY, join_timeout: float | None = None) -> Renewer:
        seconds = {"validity": validity, "join_timeout": join_timeout}
        spans = {name: None if value is None else timedelta(seconds=value) for name, value in seconds.items()}
        return Renewer("the lease", self.grantor.renew, interval=timedelta(seconds=INTERVAL), **spans)

    def run(self, body: Callable[[], None], *, until: float = 1000.0) -> None:
        """Run ``body`` as the process's first thread; its errors are the test's."""
        failed: list[BaseException] = []

        def main() -> None:
            try:
                body()
            except AssertionError as error:
                failed.append(error)

        self.threads.scheduler.spawn(self.process, main)
        self.threads.scheduler.run(until)
        self.threads.scheduler.end()
        for error in failed:
            raise error


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    threads = Threads()
    monkeypatch.setattr(renewal, "threading", threads)
    for module in (renewal, stopwatch):
        monkeypatch.setattr(module, "time", Time(threads))
    return Simulated(threads)


def unanswered() -> str | None:
    raise ConnectionError("no answer")


def test_one_request_is_sent_every_interval_and_none_after_the_end(simulated: Simulated):
    def body() -> None:
        with simulated.renewer():
            simulated.time.sleep(35)
        assert simulated.grantor.asked == [10, 20, 30]
        simulated.time.sleep(100)
        assert simulated.grantor.asked == [10, 20, 30]

    simulated.run(body)


def test_nothing_is_certain_before_the_first_grant_and_validity_counts_from_before_the_request(simulated: Simulated):
    def body() -> None:
        renewer = simulated.renewer()
        assert (renewer.is_certain, renewer.loss_reason) == (False, None)
        simulated.grantor.takes = 20
        assert renewer.renew_now() is None
        assert renewer.is_certain
        simulated.time.sleep(9)
        assert renewer.is_certain
        simulated.time.sleep(1)
        assert not renewer.is_certain, "thirty seconds after the request, ten after its answer"
        assert renewer.loss_reason is None

    simulated.run(body)


def test_a_process_suspended_between_a_request_and_its_answer_is_uncertain_when_it_resumes(
    simulated: Simulated,
):
    def body() -> None:
        renewer = simulated.renewer()

        def granted_then_stopped() -> None:
            simulated.process.sleeps(simulated.time.monotonic(), VALIDITY)
            simulated.time.sleep(0)

        simulated.grantor.says = granted_then_stopped
        assert renewer.renew_now() is None
        assert simulated.time.monotonic() == VALIDITY
        assert not renewer.is_certain
        simulated.grantor.says = lambda: None
        assert renewer.renew_now() is None
        assert renewer.is_certain, "the grantor has given it to no other process"

    simulated.run(body)


def test_a_process_suspended_between_two_requests_is_uncertain_and_sends_a_request_at_once(
    simulated: Simulated,
):
    def body() -> None:
        renewer = simulated.renewer()
        renewer.renew_now()
        with renewer:
            simulated.time.sleep(12)
            assert renewer.is_certain
            simulated.process.sleeps(simulated.time.monotonic(), 100)
            simulated.time.sleep(0)
            assert simulated.time.monotonic() == 112
            assert (renewer.is_certain, simulated.grantor.asked) == (False, [0, 10])
            simulated.time.sleep(1)
            assert (renewer.is_certain, simulated.grantor.asked) == (True, [0, 10, 112])

    simulated.run(body)


def test_a_failed_renewal_is_repeated_after_the_interval_and_ends_certainty_only_when_time_is_up(
    simulated: Simulated, caplog: pytest.LogCaptureFixture
):
    def body() -> None:
        renewer = simulated.renewer()
        renewer.renew_now()
        with renewer:
            simulated.grantor.says = unanswered
            simulated.time.sleep(29)
            assert renewer.is_certain
            simulated.time.sleep(2)
            assert (renewer.is_certain, renewer.loss_reason) == (False, None)
            simulated.grantor.says = lambda: None
            simulated.time.sleep(10)
            assert renewer.is_certain
        assert simulated.grantor.asked == [0, 10, 20, 30, 40]

    simulated.run(body)
    assert caplog.messages == ["the lease could not be renewed, and is tried again: ConnectionError: no answer"]


def test_a_refused_renewal_is_final_and_no_request_follows(simulated: Simulated, caplog: pytest.LogCaptureFixture):
    def body() -> None:
        renewer = simulated.renewer()
        renewer.renew_now()
        with renewer:
            simulated.grantor.says = lambda: "another has it"
            simulated.time.sleep(11)
            assert (renewer.is_certain, renewer.loss_reason) == (False, "another has it")
            simulated.grantor.says = lambda: None
            simulated.time.sleep(50)
            assert renewer.renew_now() == "another has it"
        assert simulated.grantor.asked == [0, 10]
        assert renewer.loss_reason == "another has it"

    simulated.run(body)
    assert caplog.messages == ["the lease was lost: another has it"]


def test_a_request_of_the_holder_waits_for_that_of_the_thread_and_passes_its_error_on(simulated: Simulated):
    def body() -> None:
        with simulated.renewer() as renewer:
            simulated.grantor.takes = 4
            simulated.time.sleep(12)
            simulated.grantor.says = unanswered
            with pytest.raises(ConnectionError):
                renewer.renew_now()
            assert simulated.time.monotonic() == 18
            assert simulated.grantor.most_at_once == 1
            assert (renewer.is_certain, renewer.loss_reason) == (False, None)

    simulated.run(body)


def test_a_holder_that_waits_for_a_request_which_is_refused_sends_none_of_its_own(simulated: Simulated):
    def body() -> None:
        with simulated.renewer() as renewer:
            simulated.grantor.takes, simulated.grantor.says = 4, lambda: "another has it"
            simulated.time.sleep(12)
            assert renewer.renew_now() == "another has it"
        assert simulated.grantor.asked == [10]

    simulated.run(body)


def test_the_end_waits_for_a_request_under_way_so_later_changes_are_not_undone(simulated: Simulated):
    def body() -> None:
        with simulated.renewer() as renewer:
            simulated.grantor.takes = 60
            simulated.time.sleep(11)
        assert simulated.time.monotonic() == 70
        assert (simulated.grantor.under_way, renewer.is_certain) == (0, False)

    simulated.run(body)


def test_the_end_does_not_wait_longer_than_it_may_and_a_late_answer_changes_nothing(
    simulated: Simulated, caplog: pytest.LogCaptureFixture
):
    def body() -> None:
        with simulated.renewer(join_timeout=5) as renewer:
            simulated.grantor.takes = 60
            simulated.time.sleep(11)
        assert simulated.time.monotonic() == 16
        assert (renewer.is_certain, renewer.loss_reason) == (False, "the lease was released")
        simulated.time.sleep(100)
        assert (renewer.is_certain, renewer.loss_reason) == (False, "the lease was released")
        assert renewer.renew_now() == "the lease was released"
        assert (simulated.grantor.asked, simulated.grantor.under_way) == ([10], 0)

    simulated.run(body)
    assert caplog.messages == []


def test_a_request_that_takes_longer_than_the_interval_is_followed_by_the_next_one(simulated: Simulated):
    def body() -> None:
        simulated.grantor.takes = 25
        with simulated.renewer():
            simulated.time.sleep(61)
        assert simulated.grantor.asked == [10, 35, 60]

    simulated.run(body)


def test_without_a_validity_only_a_request_proves_anything(simulated: Simulated):
    def body() -> None:
        renewer = simulated.renewer(validity=None)
        assert renewer.renew_now() is None
        assert not renewer.is_certain

    simulated.run(body)


def test_a_request_in_place_of_the_usual_one_counts_the_same(simulated: Simulated):
    def body() -> None:
        renewer = simulated.renewer()
        assert renewer.renew_now(lambda: None) is None
        assert (renewer.is_certain, simulated.grantor.asked) == (True, [])
        assert renewer.renew_now(lambda: str(LeaseLost("gone"))) == "gone"

    simulated.run(body)


def test_the_thread_logs_with_the_fields_of_the_thread_that_started_it(simulated: Simulated):
    def body() -> None:
        with log_fields(plan="0198"), simulated.renewer():
            simulated.time.sleep(11)
        assert simulated.grantor.fields == [{"plan": "0198"}]

    simulated.run(body)


def test_a_forked_child_holds_nothing_and_renews_nothing(simulated: Simulated, monkeypatch: pytest.MonkeyPatch):
    def body() -> None:
        renewer = simulated.renewer()
        renewer.renew_now()
        monkeypatch.setattr(renewal, "os", SimpleNamespace(getpid=lambda: -1))
        assert (renewer.is_certain, renewer.renew_now()) == (False, "the lease was released")
        assert simulated.grantor.asked == [0]

    simulated.run(body)


class LeaderRows:
    """Leader rows in virtual time. A call takes ``takes`` seconds before it changes a row."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self.takes = 0.0
        self.rows: dict[str, tuple[str, float]] = {}

    def acquire_leader(self, role: str, holder: str, ttl: timedelta) -> bool:
        self._time.sleep(self.takes)
        now = self._time.monotonic()
        owner, until = self.rows.get(role, (holder, 0.0))
        if owner != holder and until > now:
            return False
        self.rows[role] = holder, now + ttl.total_seconds()
        return True

    def release_leader(self, role: str, holder: str) -> None:
        if self.rows.get(role, ("", 0.0))[0] == holder:
            del self.rows[role]


def test_a_command_holds_its_role_while_it_runs_and_its_last_renewal_does_not_take_it_back(simulated: Simulated):
    def body() -> None:
        rows = LeaderRows(simulated.time)
        with leader_lease(rows, "clean", "a command") as held:
            assert held
            for _ in range(10):
                simulated.time.sleep(10)
                with leader_lease(rows, "clean", "another") as held_too:
                    assert not held_too
            rows.takes = 25.0
            simulated.time.sleep(11)
        assert (simulated.time.monotonic(), rows.rows) == (135, {}), "the renewal under way has ended"
        simulated.time.sleep(100)
        assert rows.rows == {}

    simulated.run(body)


def test_a_command_suspended_until_another_one_had_its_role_leaves_the_role_to_that_one(simulated: Simulated):
    def body() -> None:
        rows = LeaderRows(simulated.time)
        with leader_lease(rows, "clean", "a command"):
            simulated.time.sleep(5)
            simulated.process.sleeps(5, 100)
            rows.rows["clean"] = "another", 1000.0
            simulated.time.sleep(1)
        assert rows.rows == {"clean": ("another", 1000.0)}

    simulated.run(body)


def test_nothing_is_certain_after_the_machine_was_suspended_although_its_monotonic_clock_stood_still(
    monkeypatch: pytest.MonkeyPatch,
):
    wall = [1000.0]
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: 7.0, time=lambda: wall[0]))
    renewer = Renewer("the lease", lambda: None, interval=timedelta(seconds=10), validity=timedelta(seconds=VALIDITY))
    assert renewer.renew_now() is None
    assert renewer.is_certain
    wall[0] += VALIDITY
    assert (renewer.is_certain, renewer.loss_reason) == (False, None), "another process may have taken it over"
    assert renewer.renew_now() is None
    assert renewer.is_certain
