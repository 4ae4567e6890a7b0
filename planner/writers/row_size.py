# SPDX-License-Identifier: Apache-2.0
"""How large Hudi takes a row for: what its own commits tell, else a setting (``AverageRecordSizeEstimator``)."""

import math
from collections import deque
from dataclasses import dataclass, field

#: commits that Hudi looks back at, ``hoodie.record.size.estimation.max.commits``
_RECENT_COMMITS = 5


@dataclass(slots=True, kw_only=True)
class RowSizeEstimator:
    """The estimate of a row's bytes after each commit."""

    default_bytes: int
    #: a commit that wrote no more base file bytes than this tells nothing
    threshold_bytes: float
    _commits: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_RECENT_COMMITS))

    def record_commit(self, written_bytes: int, rows: int) -> None:
        """Note a commit: base file bytes and the rows in those files, old ones that were written again included."""
        self._commits.appendleft((written_bytes, rows))

    @property
    def estimated_bytes(self) -> int:
        """The newest commit that tells decides; the setting where none does."""
        for written, rows in self._commits:
            if rows and written > self.threshold_bytes:
                return math.ceil(written / rows)
        return self.default_bytes
