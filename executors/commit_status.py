# SPDX-License-Identifier: Apache-2.0
"""Whether the commit of a plan is in its table: what a run of the plan knows of that, and how it asks."""

from collections.abc import Sequence

from executors.lease import Lease
from executors.retry import poll_for_commit
from lake.errors import CommitLost, CommitUnknown, TableGone, one_line
from lake.plan import Claim, Commit
from lake.ports import TableFormat


class CommitStatus:
    """The commit of one claimed plan, as far as it is known."""

    def __init__(self, claim: Claim, format_: TableFormat, lease: Lease, retry_delays: Sequence[float]) -> None:
        self._claim, self._format, self._lease, self._retry_delays = claim, format_, lease, retry_delays
        #: the commit that names our plan, as soon as it is known
        self.commit: Commit | None = None
        #: some attempt of the plan has come as far as its commit: from then on no answer of the table is none
        self.is_commit_possible = claim.epoch > 1

    def find_commit(self) -> Commit | None:
        """What the table says. Raises CommitUnknown where it does not answer although the commit may have landed.

        CommitLost is an answer.
        """
        plan = self._claim.plan
        try:
            return self._format.find_commit(plan.table, plan.plan_id)
        except CommitLost:
            raise
        except Exception as error:
            # A table that is not mounted, forbidden or missing says nothing of what it holds.
            if not self.is_commit_possible or (isinstance(error, TableGone) and self._should_cancel()):
                raise
            given_up = f"; to give it up: lakefold plans cancel {plan.plan_id}" * isinstance(error, TableGone)
            unknown = f"the table can't be asked whether it holds the plan: {one_line(error)}{given_up}"
            raise CommitUnknown(unknown) from error

    def find_commit_after(self, error: Exception, *, until_found: bool) -> Commit | None:
        """What the table says of a commit that ended in ``error``, see ``patience.poll_for_commit``."""
        return poll_for_commit(
            self._format, self._claim.plan, error, delays=self._retry_delays, until_found=until_found
        )

    def _should_cancel(self) -> bool:
        self._lease.assert_owned()
        return self._lease.is_cancel_requested
