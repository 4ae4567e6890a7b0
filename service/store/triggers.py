# SPDX-License-Identifier: Apache-2.0
"""The plan's state machine inside the database, generated from ``lake.plan.TRANSITIONS``.

Three rules hold whatever program writes: a plan begins as requested, changes state only along TRANSITIONS, and
its epoch never goes back and moves on whenever it goes inflight. A migration runs ``drop`` and ``create`` whenever
TRANSITIONS changes.
"""

from lake.plan import TRANSITIONS, PlanState

_TRIGGER_NAMES = ("plan_begins_requested", "plan_transition", "plan_epoch")


def _trigger_rules() -> list[tuple[str, str, str, str]]:
    """Name, event, when it is broken, and what to say."""
    legal = ", ".join(
        f"'{before}>{after}'" for before, afters in sorted(TRANSITIONS.items()) for after in sorted(afters)
    )
    return [
        ("plan_begins_requested", "INSERT", f"NEW.state <> '{PlanState.REQUESTED}'", "a plan begins as requested"),
        (
            "plan_transition",
            "UPDATE OF state",
            f"OLD.state <> NEW.state AND (OLD.state || '>' || NEW.state) NOT IN ({legal})",
            "illegal transition of a plan",
        ),
        (
            "plan_epoch",
            "UPDATE OF epoch, state",
            "NEW.epoch < OLD.epoch"
            f" OR (OLD.state <> NEW.state AND NEW.state = '{PlanState.INFLIGHT}' AND NEW.epoch = OLD.epoch)",
            "the epoch of a plan only goes up, and does at each claim",
        ),
    ]


def create_trigger_statements(dialect: str) -> list[str]:
    """Statements that create the triggers on ``dialect`` ('sqlite' or 'postgresql')."""
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER {name} BEFORE {event} ON plan WHEN {broken} BEGIN SELECT RAISE(ABORT, '{text}'); END"
            for name, event, broken, text in _trigger_rules()
        ]
    statements = []
    for name, event, broken, text in _trigger_rules():
        statements += [
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" RAISE EXCEPTION '{text}' USING ERRCODE = 'check_violation'; END $$",
            f"CREATE TRIGGER {name} BEFORE {event} ON plan FOR EACH ROW WHEN ({broken}) EXECUTE FUNCTION {name}()",
        ]
    return statements


def drop_trigger_statements(dialect: str) -> list[str]:
    """Statements that remove what ``create`` made."""
    if dialect == "sqlite":
        return [f"DROP TRIGGER {name}" for name in _TRIGGER_NAMES]
    return [statement for n in _TRIGGER_NAMES for statement in (f"DROP TRIGGER {n} ON plan", f"DROP FUNCTION {n}()")]
