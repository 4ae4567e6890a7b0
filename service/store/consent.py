# SPDX-License-Identifier: Apache-2.0
"""Whether plans wait for approval: conditions on their rows."""

from sqlalchemy import ColumnElement, and_, or_

from lake.plan import Decision, PlanState
from service.store.models import PlanRow


def waits_for_a_yes() -> ColumnElement[bool]:
    """Whether a plan was proposed and nobody has decided yet."""
    undecided = PlanRow.proposed_at_ms.is_not(None) & PlanRow.decision.is_(None)
    return and_(undecided, PlanRow.state == PlanState.REQUESTED)


def may_run() -> ColumnElement[bool]:
    """Whether a requested plan needs no yes, or has it."""
    return or_(PlanRow.proposed_at_ms.is_(None), PlanRow.decision == Decision.APPROVED)
