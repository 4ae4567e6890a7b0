# SPDX-License-Identifier: Apache-2.0
"""The CPU seconds that a plan takes: constants of each engine, corrected by the completed plans (``fit_rates``).

docs/planning.md has the formula. The constants are round numbers of the right order of magnitude, not measured on
particular hardware.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lake.engines import BYTES_PER_SECOND
from lake.plan import AUTO

#: CPU seconds of a plan regardless of its size: preconditions, publishing, verification, the commit
FIXED_SECONDS = 5.0
#: the weight of the constants in a fit, counted in plans of the history
_PRIOR_WEIGHT = 1.0
#: history can't reduce costs below this factor: a faulty measurement must not make work free
_MIN_FACTOR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The CPU seconds of a plan: ``fixed_seconds`` plus ``seconds_per_byte`` for each byte that it reads.

    ``plans`` is the number of this installation's plans from which the rates were fitted; 0 means the constants.
    """

    fixed_seconds: float = FIXED_SECONDS
    seconds_per_byte: float = 1 / BYTES_PER_SECOND[AUTO]
    plans: int = 0

    def cpu_seconds(self, size_bytes: int) -> float:
        """Return the CPU seconds of a plan that rewrites ``size_bytes``."""
        return self.fixed_seconds + size_bytes * self.seconds_per_byte

    def max_bytes(self, cpu_seconds: float) -> int:
        """Return the bytes of the largest plan within ``cpu_seconds``; 0 if even the fixed part takes longer."""
        return max(0, math.floor((cpu_seconds - self.fixed_seconds) / self.seconds_per_byte))


def fit_rates(engine: str, history: Iterable[tuple[int, float]]) -> Rates:
    """Fit the rates to ``history``: bytes and CPU seconds of plans that this engine executed.

    The fixed part and the part per byte are constants, each multiplied by a factor. The factors minimize the squares of
    the relative errors. A prior pulls each factor towards 1, with the weight of one plan. Small plans determine the
    fixed part, large plans the part per byte; a part without evidence keeps its constant.
    """
    per_byte = 1 / BYTES_PER_SECOND.get(engine, BYTES_PER_SECOND[AUTO])
    fixed_fixed = byte_byte = fixed_seen = byte_seen = _PRIOR_WEIGHT
    fixed_byte, plans = 0.0, 0
    for count, seconds in history:
        guess = FIXED_SECONDS + count * per_byte
        fixed, by_byte, seen = FIXED_SECONDS / guess, count * per_byte / guess, seconds / guess
        fixed_fixed, byte_byte, fixed_byte = (
            fixed_fixed + fixed**2,
            byte_byte + by_byte**2,
            fixed_byte + fixed * by_byte,
        )
        fixed_seen, byte_seen, plans = fixed_seen + fixed * seen, byte_seen + by_byte * seen, plans + 1
    determinant = fixed_fixed * byte_byte - fixed_byte**2
    of_fixed = (fixed_seen * byte_byte - byte_seen * fixed_byte) / determinant
    of_byte = (byte_seen * fixed_fixed - fixed_seen * fixed_byte) / determinant
    return Rates(
        fixed_seconds=FIXED_SECONDS * max(of_fixed, _MIN_FACTOR),
        seconds_per_byte=per_byte * max(of_byte, _MIN_FACTOR),
        plans=plans,
    )
