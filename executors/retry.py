# SPDX-License-Identifier: Apache-2.0
"""Questions repeated until there is an answer: to a table about a commit, to the database to record what happened."""

import logging
import time
from collections.abc import Callable, Sequence

from lake.errors import CommitLost, CommitUnknown, LeaseLost, one_line
from lake.plan import Commit, Plan
from lake.ports import TableFormat

log = logging.getLogger(__name__)


def poll_for_commit(
    format_: TableFormat, plan: Plan, error: Exception, *, delays: Sequence[float], until_found: bool
) -> Commit | None:
    """What the table says of the commit of ``plan`` that ended in ``error``, asked again after each of ``waits`` (s).

    Raises CommitUnknown where it is silent, or ``until_landed`` and denies it; CommitLost goes through.
    """
    answered = False
    for seconds in (*delays, None):
        try:
            commit = format_.find_commit(plan.table, plan.plan_id)
            answered = True
        except CommitLost:
            raise
        except Exception as silent:
            log.warning("plan %s: the table could not be asked: %s", plan.plan_id, one_line(silent))
        else:
            if commit is not None or not until_found:
                return commit
        if seconds is not None:
            time.sleep(seconds)
    said = "the table does not show it yet" if answered else "the table does not answer"
    raise CommitUnknown(f"the commit may have landed, {said}: {one_line(error)}") from error


def retry_store_call(plan_id: str, action: str, call: Callable[[], None], *, delays: Sequence[float]) -> None:
    """Call again after each of ``waits`` (s) while the database fails; LeaseLost, and the last failure, go through."""
    for seconds in delays:
        try:
            return call()
        except LeaseLost:
            raise
        except Exception as error:
            log.warning("plan %s could not be %s: %s", plan_id, action, one_line(error))
        time.sleep(seconds)
    return call()
