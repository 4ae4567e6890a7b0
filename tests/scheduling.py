# SPDX-License-Identifier: Apache-2.0
"""Which process of a run takes which file: one that has running already what its tests ask for.

A Spark session costs half a minute of CPU until it is warm, a Hive metastore with its tables as much. A file's text
tells what its tests ask for; taken wrongly, the run is slower and nothing else.
"""

import re
from functools import cache

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: what is worth being started once: words of the files that need it, in how many processes, and what goes first
_KINDS = {
    "metastore": (re.compile(r"\bMetastoreServer\b|usefixtures\(\"metastore\"\)"), 2, 4),
    "hdfs": (re.compile(r"\bhdfs: HadoopCluster\b"), 1, 4),
    "browser": (re.compile(r"\bbrowser\b, "), 1, 2),
    "s3": (re.compile(r"\b(?:s3_server|bucket)\b[,:)]"), 1, 1),
    "installation": (re.compile(r"\binstalled\b[,:]"), 1, 1),
    "iceberg catalogs": (re.compile(r"\b(?:IcebergCase|NewCase)\b"), 1, 3),
    # Last of those of a metastore: these tables stay there, and lakefold lists them all.
    "hive tables": (re.compile(r"\bhive: MetastoreServer\b"), 1, -1),
    "other writer": (re.compile(r"\bother: OtherWriter\b"), 1, 1),
    "spark": (re.compile(r"\bmark\.spark\b"), 2, 1),
}


class ByWhatIsRunning(LoadFileScheduling):
    """Files in their order, those first for which a process has most of what is expensive to start."""

    def __init__(self, config: pytest.Config, log: object | None = None) -> None:
        super().__init__(config, log)  # type: ignore[arg-type]
        self._started: dict[WorkerController, set[str]] = {}

    def _assign_work_unit(self, node: WorkerController) -> None:
        started = self._started.setdefault(node, set())
        scope = min(self.workqueue, key=lambda path: self._rank(self._needs(path), started))
        started |= self._needs(scope)
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _rank(self, needs: frozenset[str], started: set[str]) -> tuple[int, int]:
        """The lower the sooner: what would be one too many, then how much is there for it."""
        new = needs - started
        too_many = sum(sum(kind in of for of in self._started.values()) >= _KINDS[kind][1] for kind in new)
        return too_many, -sum(_KINDS[kind][2] for kind in needs)

    @cache  # noqa: B019 - one object a run
    def _needs(self, path: str) -> frozenset[str]:
        text = (self.config.rootpath / path).read_text()
        return frozenset(kind for kind, (words, _, _) in _KINDS.items() if words.search(text))
