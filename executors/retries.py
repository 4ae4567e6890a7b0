# SPDX-License-Identifier: Apache-2.0
"""Calls repeated until they succeed: checks of a table for a commit, and records of a result in the database."""

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
    """Return the commit of ``plan`` after an attempt that ended in ``error``; repeats after each of ``delays`` (s).

    Raises CommitUnknown if all checks fail, or if ``until_found`` and the table has no commit; CommitLost passes
    through.
    """
    answered = False
    for seconds in (*delays, None):
        try:
            commit = format_.find_commit(plan.table, plan.plan_id)
            answered = True
        except CommitLost:
            raise
        except Exception as silent:
            log.warning("plan %s: the table could not be checked: %s", plan.plan_id, one_line(silent))
        else:
            if commit is not None or not until_found:
                return commit
        if seconds is not None:
            time.sleep(seconds)
    status = "the table does not show it yet" if answered else "the table does not answer"
    raise CommitUnknown(f"the commit may have been made, {status}: {one_line(error)}") from error


def retry_store_call(plan_id: str, action: str, call: Callable[[], None], *, delays: Sequence[float]) -> None:
    """Repeat ``call`` after each of ``delays`` (s) while the database fails. Raises LeaseLost and the last error."""
    for seconds in delays:
        try:
            return call()
        except LeaseLost:
            raise
        except Exception as error:
            log.warning("plan %s could not be %s: %s", plan_id, action, one_line(error))
        time.sleep(seconds)
    return call()
