# SPDX-License-Identifier: Apache-2.0
"""The OpenLineage events of plans: each run of a plan rewrites a table, which is both its input and its output."""

import uuid
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlsplit

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    RunFacet,
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
)
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport, TokenProvider

from executors.observer import Observer
from executors.outcome import RunOutcome, RunResult
from lake.plan import Claim
from lake.redaction import redact
from lake.version import __version__
from service.control.config.telemetry import OpenLineageSettings
from service.server.observability.background_queue import BackgroundQueue

_PRODUCER = f"https://github.com/lakefold/lakefold/tree/{__version__}"
_FLUSH_SECONDS = 5.0
#: a requeued run counts as failed, because its plan continues in another run; a stopped run counts as aborted
_STATES = {
    RunResult.COMPLETED: RunState.COMPLETE,
    RunResult.FAILED: RunState.FAIL,
    RunResult.REQUEUED: RunState.FAIL,
    RunResult.CANCELLED: RunState.ABORT,
    RunResult.LEASE_LOST: RunState.ABORT,
    RunResult.INFLIGHT: RunState.ABORT,
}


class LineageObserver(Observer):
    """The observer that sends START and then COMPLETE, FAIL or ABORT for each run of a plan."""

    def __init__(self, settings: OpenLineageSettings) -> None:
        assert settings.url is not None, "the observer needs the address of an OpenLineage service"
        key = settings.api_key
        auth = ApiKeyTokenProvider({"apiKey": key.get_secret_value()}) if key is not None else TokenProvider({})
        config = HttpConfig(
            url=settings.url, endpoint=settings.endpoint, timeout=settings.timeout.total_seconds(), auth=auth
        )
        self._client = OpenLineageClient(transport=HttpTransport(config))
        self._namespace = settings.namespace
        self._background = BackgroundQueue("openlineage")

    def run_started(self, claim: Claim) -> None:
        self._send(claim, claim.epoch, RunState.START)

    def run_ended(self, claim: Claim, outcome: RunOutcome) -> None:
        self._send(claim, claim.epoch, _STATES[outcome.result], outcome)

    def lease_expired(self, claim: Claim) -> None:
        """See Observer. Sends ABORT for the previous run, whose executor is silent."""
        self._send(claim, claim.epoch - 1, RunState.ABORT)

    def close(self) -> None:
        """Send the waiting events, for at most 5 s."""
        self._background.close(_FLUSH_SECONDS)

    def _send(self, claim: Claim, epoch: int, state: RunState, outcome: RunOutcome | None = None) -> None:
        event = _event(self._namespace, claim, epoch, state, outcome)
        self._background.submit(partial(self._client.emit, event))


def run_id(plan_id: str, epoch: int) -> str:
    """Return the id of a plan's run in one epoch: each claim of a plan is a run."""
    return str(uuid.uuid5(uuid.UUID(plan_id), str(epoch)))


def dataset_id(location: str) -> tuple[str, str]:
    """Return namespace and name of the table at ``location``, by OpenLineage's naming rules for datasets."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return "file", parts.path
    name = parts.path if parts.scheme == "hdfs" else parts.path.strip("/")
    return f"{parts.scheme}://{parts.netloc}", name


def _event(namespace: str, claim: Claim, epoch: int, state: RunState, outcome: RunOutcome | None) -> RunEvent:
    plan = claim.plan
    place, name = dataset_id(plan.table.location)
    facets: dict[str, RunFacet] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(version=__version__, name="lakefold")
    }
    if outcome is not None and outcome.error:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=redact(outcome.error), programmingLanguage="python"
        )
    source, target = InputDataset(place, name), OutputDataset(place, name)
    if outcome is not None and outcome.commit is not None and outcome.result is RunResult.COMPLETED:
        outputs, figures = outcome.commit.outputs, outcome.figures
        target.outputFacets = {
            "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=sum(file.rows for file in outputs),
                size=sum(file.bytes for file in outputs),
                fileCount=len(outputs),
            )
        }
        source.inputFacets = {
            "inputStatistics": input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                size=sum(item.bytes_before for item in figures), fileCount=sum(item.files_before for item in figures)
            )
        }
    kind = job_type_job.JobTypeJobFacet(processingType="BATCH", integration="LAKEFOLD", jobType=plan.kind.value.upper())
    return RunEvent(
        eventType=state,
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(runId=run_id(plan.plan_id, epoch), facets=facets),
        job=Job(namespace=namespace, name=f"{plan.kind}.{plan.table.name}", facets={"jobType": kind}),
        producer=_PRODUCER,
        inputs=[source],
        outputs=[target],
    )
