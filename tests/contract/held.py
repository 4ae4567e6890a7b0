# SPDX-License-Identifier: Apache-2.0
"""An executor in a process of its own, with a plan at each of the named points; for every format."""

from toys.bench import Bench
from toys.processes import start, wait
from waiting import wait_for

from contract.processes import FAILPOINTS
from contract.run import ended

POINTS = [*FAILPOINTS[: FAILPOINTS.index("after_commit")], "in_commit", *FAILPOINTS[FAILPOINTS.index("after_commit") :]]


class Held:
    """An executor with a plan at each of the points, which all wait there."""

    def __init__(self, bench: Bench, points: list[str]) -> None:
        self._bench, self._points = bench, points
        self.tables = [bench.add_table(f"at {name}") for name in points]
        self.before = bench.rows()
        self.plans = [bench.request(table) for table in self.tables]
        self._gates = {name: bench.home / "gates" / name for name in points}
        (bench.home / "gates").mkdir()
        failpoints = ",".join(f"{name}=hold:{gate}" for name, gate in self._gates.items())
        self.process = start(bench, "once", lease=60, failpoints=failpoints, slots=len(points), most=0.5)
        wait_for(self._all_wait, self._missing, 60)

    def open(self) -> None:
        """Let all of them go on."""
        for gate in self._gates.values():
            gate.touch()

    def check(self, output: str) -> None:
        """Each plan has landed once, no row is another, nothing is left behind, no table is halted."""
        for table, plan in zip(self.tables, self.plans, strict=True):
            self._bench.table = table
            assert self._bench.state(plan) == "completed", output
            ended(self._bench, plan, self.before)
            assert self._bench.store.table_state(table.name).halted_reason is None
            assert len(self._bench.store.awaiting_deletion(table)) == 6

    def _all_wait(self) -> bool:
        assert self.process.poll() is None, wait(self.process)
        return not self._missing()

    def _missing(self) -> str:
        return ", ".join(name for name, gate in self._gates.items() if not gate.with_name(f"{name}.reached").exists())
