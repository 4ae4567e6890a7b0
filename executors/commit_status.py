# SPDX-License-Identifier: Apache-2.0
"""Whether a plan's commit is in its table: the state known to a run of the plan, and the checks of the table."""

from collections.abc import Sequence

from executors.lease import Lease
from executors.retries import poll_for_commit
from lake.errors import CommitLost, CommitUnknown, TableGone, one_line
from lake.plan import Claim, Commit
from lake.ports import TableFormat


class CommitStatus:
    """The known state of one claimed plan's commit."""

    def __init__(self, claim: Claim, format_: TableFormat, lease: Lease, retry_delays: Sequence[float]) -> None:
        self._claim, self._format, self._lease, self._retry_delays = claim, format_, lease, retry_delays
        #: the commit that names the plan, once it is known
        self.commit: Commit | None = None
        #: True once an attempt of the plan may have begun its commit: then a failed check does not mean "no commit"
        self.is_commit_possible = claim.epoch > 1
        #: True if this run's commit call ended in an error after which the commit may still exist
        self.is_own_commit_possible = False

    def find_commit(self) -> Commit | None:
        """Return the commit in the table. Raises CommitUnknown if the check fails and a commit is possible.

        CommitLost passes through.
        """
        plan = self._claim.plan
        try:
            return self._format.find_commit(plan.table, plan.plan_id)
        except CommitLost:
            raise
        except Exception as error:
            # A table that is not mounted, forbidden or missing does not show its commits.
            if not self.is_commit_possible or (isinstance(error, TableGone) and self._should_cancel()):
                raise
            given_up = f"; to give it up: lakefold plans cancel {plan.plan_id}" * isinstance(error, TableGone)
            unknown = f"the table can't be checked for the plan's commit: {one_line(error)}{given_up}"
            raise CommitUnknown(unknown) from error

    def find_commit_after(self, error: Exception, *, until_found: bool) -> Commit | None:
        """Return the table's commit after a commit step that ended in ``error``, see ``retries.poll_for_commit``."""
        return poll_for_commit(
            self._format, self._claim.plan, error, delays=self._retry_delays, until_found=until_found
        )

    @property
    def can_withdraw_unowned(self) -> bool:
        """True if this run may withdraw its own work although another executor may own the plan.

        False if the work may be committed. Then the other executor may record the commit, and a later plan may replace
        it: the table no longer shows the commit, but still keeps its files for readers.
        """
        return self.commit is None and not self.is_own_commit_possible

    def _should_cancel(self) -> bool:
        self._lease.assert_owned()
        return self._lease.is_cancel_requested
