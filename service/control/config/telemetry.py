# SPDX-License-Identifier: Apache-2.0
"""``[openlineage]`` and ``[opentelemetry]`` of the configuration; each needs the extra of its name installed."""

from datetime import timedelta

from pydantic import Field, SecretStr

from service.control.config.field_types import Duration, SettingsSection, WebAddress


class OpenLineageSettings(SettingsSection):
    """``[openlineage]``: the receiver of run events; nothing is sent without ``url``."""

    url: WebAddress | None = Field(default=None, description="the server to which run events are posted")
    endpoint: str = Field(default="api/v1/lineage", description="the path of run events on the server")
    api_key: SecretStr | None = Field(default=None, description="the key that is sent as a bearer token")
    namespace: str = Field(default="lakefold", min_length=1, description="the namespace of the jobs")
    timeout: Duration = Field(default=timedelta(seconds=5), description="the time-out of one event")


class OpenTelemetrySettings(SettingsSection):
    """``[opentelemetry]``: the receiver of spans, by OTLP over HTTP; nothing is sent without ``traces_url``."""

    traces_url: WebAddress | None = Field(
        default=None, description="the URL to which spans are posted, such as `http://otel-collector:4318/v1/traces`"
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="a table of headers to send; their values are secrets"
    )
    service_name: str = Field(default="lakefold", min_length=1, description="the resource's `service.name`")
    timeout: Duration = Field(default=timedelta(seconds=10), description="the time-out of one batch of spans")
