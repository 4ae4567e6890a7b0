# SPDX-License-Identifier: Apache-2.0
"""The context of request handlers: made once by the process, reached by every router through ``Here``."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request

from service.api.tokens import TokenCache
from service.config.loader import Config
from service.config.tables import ConfiguredTable, configure
from service.documents.lake_cache import LakeCache
from service.observability.metrics import Metrics
from service.observability.metrics_page import MetricsPage
from service.store import Reach, Store, TableState

if TYPE_CHECKING:
    from service.api.oidc import Provider

#: roles that serve ``/v1`` and the page besides metrics and health
SERVING_ROLES = ("all", "api")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The process behind the handlers. ``not_ready`` gives None when the process is ready, else why it is not."""

    config: Config
    store: Store
    metrics: Metrics
    page: MetricsPage
    lake_cache: LakeCache
    not_ready: Callable[[], str | None]
    role: str
    tokens: TokenCache
    oidc: "Provider | None" = None
    _configured: dict[tuple[str, str, str], ConfiguredTable] = field(default_factory=dict)

    @property
    def serves_api(self) -> bool:
        """Whether ``/v1`` is served."""
        return self.role in SERVING_ROLES

    def configured(self, state: TableState) -> ConfiguredTable:
        """What the configuration says of a registered table. Raises ConfigError."""
        key = (state.name, state.format, state.location)
        if key not in self._configured:
            self._configured[key] = configure(self.config, state.ref)
        return self._configured[key]

    def within(self, reach: Reach) -> "Context":
        """The same for whoever sees only the tables within ``reach``."""
        if reach.everything:
            return self
        return replace(self, store=self.store.within(reach), lake_cache=self.lake_cache.within(reach))


def context(request: Request) -> Context:
    """The process's context as far as the caller may see it; as a dependency, ``Here``."""
    whole = cast(Context, request.app.state.context)
    caller = getattr(request.state, "caller", None)
    return whole if caller is None else whole.within(caller.reach)


Here = Annotated[Context, Depends(context)]
