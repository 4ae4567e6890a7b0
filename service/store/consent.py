# SPDX-License-Identifier: Apache-2.0
"""Whether plans wait for approval: conditions on their rows."""

from sqlalchemy import ColumnElement, and_, or_

from lake.plan import PlanState, ProposalDecision
from service.store.models import PlanRow


def is_awaiting_approval() -> ColumnElement[bool]:
    """Whether a plan was proposed and nobody has decided yet."""
    undecided = PlanRow.proposed_at_ms.is_not(None) & PlanRow.decision.is_(None)
    return and_(undecided, PlanRow.state == PlanState.REQUESTED)


def is_approved_or_exempt() -> ColumnElement[bool]:
    """Whether a requested plan needs no yes, or has it."""
    return or_(PlanRow.proposed_at_ms.is_(None), PlanRow.decision == ProposalDecision.APPROVED)
