# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables as an executor in a process of its own has them: with a Spark session that it starts itself."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lake.formats
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.spark import spark_session
from lake.engines import RewriteEngine
from lake.formats.iceberg import FORMAT, IcebergFormat


@dataclass(frozen=True, kw_only=True)
class IcebergWorkerCase:
    """What ``toys.worker`` needs of a case."""

    settings: Mapping[str, str]
    format: IcebergFormat = FORMAT
    engines: Sequence[RewriteEngine] = field(default_factory=lambda: (ArrowEngine(InProcessBackend()),))

    @staticmethod
    def of(file: Path) -> "IcebergWorkerCase":
        """A case with the settings of ``IcebergCase.settings_file``."""
        settings = json.loads(file.read_text())
        lake.formats.configure(settings)
        FORMAT.configure(settings)
        return IcebergWorkerCase(settings=settings)

    def spark(self) -> Any:
        """The process's session, with the jars of the session of the tests."""
        own = {"spark.master": "local[1]", "spark.driver.memory": "1g", "spark.jars.packages": ""}
        return spark_session({**self.settings, **own}, formats={"iceberg"})

    @staticmethod
    def takes_at_most(span: timedelta) -> None:
        """A commit is never applied after its check."""
