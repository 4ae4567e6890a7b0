# SPDX-License-Identifier: Apache-2.0
"""Whether the commit of a plan is in its table: what a run of the plan knows of that, and how it asks."""

from collections.abc import Sequence

from executors.lease import Lease
from executors.patience import ask_table
from lake.errors import CommitLost, CommitUnknown, TableGone, one_line
from lake.plan import Claim, Commit
from lake.ports import TableFormat


class Landing:
    """The commit of one claimed plan, as far as it is known."""

    def __init__(self, claim: Claim, format_: TableFormat, lease: Lease, ask_again: Sequence[float]) -> None:
        self._claim, self._format, self._lease, self._ask_again = claim, format_, lease, ask_again
        #: the commit that names our plan, as soon as it is known
        self.commit: Commit | None = None
        #: some attempt of the plan has come as far as its commit: from then on no answer of the table is none
        self.is_possible = claim.epoch > 1

    def ask(self) -> Commit | None:
        """What the table says. Raises CommitUnknown where it does not answer although the commit may have landed.

        CommitLost is an answer.
        """
        plan = self._claim.plan
        try:
            return self._format.committed(plan.table, plan.plan_id)
        except CommitLost:
            raise
        except Exception as error:
            # A table that is not mounted, forbidden or missing says nothing of what it holds.
            if not self.is_possible or (isinstance(error, TableGone) and self._is_to_be_cancelled()):
                raise
            given_up = f"; to give it up: lakefold plans cancel {plan.plan_id}" * isinstance(error, TableGone)
            unknown = f"the table can't be asked whether it holds the plan: {one_line(error)}{given_up}"
            raise CommitUnknown(unknown) from error

    def ask_after(self, error: Exception, *, until_landed: bool) -> Commit | None:
        """What the table says of a commit that ended in ``error``, see ``patience.ask_table``."""
        return ask_table(self._format, self._claim.plan, error, waits=self._ask_again, until_landed=until_landed)

    def _is_to_be_cancelled(self) -> bool:
        self._lease.hold()
        return self._lease.cancel_requested
