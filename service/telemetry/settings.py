# SPDX-License-Identifier: Apache-2.0
"""``[openlineage]`` and ``[opentelemetry]`` of the configuration; both need the extra of that name installed."""

from datetime import timedelta

from pydantic import Field, SecretStr

from service.sections import Duration, Section, WebAddress


class OpenLineage(Section):
    """``[openlineage]``: where run events go; nothing is sent without ``url``."""

    url: WebAddress | None = None
    endpoint: str = "api/v1/lineage"
    api_key: SecretStr | None = None
    namespace: str = Field(default="lakefold", min_length=1)
    timeout: Duration = timedelta(seconds=5)


class OpenTelemetry(Section):
    """``[opentelemetry]``: where spans go, by OTLP over HTTP; nothing is sent without ``traces_url``."""

    traces_url: WebAddress | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    service_name: str = Field(default="lakefold", min_length=1)
    timeout: Duration = timedelta(seconds=10)
