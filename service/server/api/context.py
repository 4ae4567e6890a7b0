# SPDX-License-Identifier: Apache-2.0
"""The context of request handlers, which the process creates once and routers get through ``ContextDep``."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request

from service.control.config.loader import Config
from service.control.config.tables import ConfiguredTable, configure_table
from service.control.lake_cache import LakeCache
from service.control.store import Store, TableScope, TableState
from service.server.api.tokens import TokenCache
from service.server.observability.metrics import Metrics
from service.server.observability.metrics_page import MetricsPage

if TYPE_CHECKING:
    from service.server.api.oidc import OidcProvider

#: roles that serve ``/v1`` and the page besides metrics and health
API_ROLES = ("all", "api")


@dataclass(slots=True, kw_only=True)
class Context:
    """The process behind the handlers.

    ``readiness_problem`` returns None if the process is ready, else the reason why it is not.
    """

    config: Config
    store: Store
    metrics: Metrics
    metrics_page: MetricsPage
    lake_cache: LakeCache
    readiness_problem: Callable[[], str | None]
    role: str
    tokens: TokenCache
    oidc: "OidcProvider | None" = None
    #: tables by name, format and location, each with the configuration that it has its settings from
    _configured: dict[tuple[str, str, str], tuple[Config, ConfiguredTable]] = field(default_factory=dict)

    @property
    def serves_api(self) -> bool:
        """True if the process serves ``/v1``."""
        return self.role in API_ROLES

    def configured_table(self, state: TableState) -> ConfiguredTable:
        """Return the configuration of a registered table. Raises ConfigError."""
        key = (state.name, state.format, state.location)
        config, known = self.config, self._configured.get(key)
        if known is None or known[0] is not config:
            known = self._configured[key] = config, configure_table(config, state.ref)
        return known[1]

    def use_config(self, config: Config) -> None:
        """Use ``config`` for all later requests."""
        self.config = config

    def limited_to(self, table_scope: TableScope) -> "Context":
        """Return this context limited to the tables within ``table_scope``."""
        if table_scope.is_unrestricted:
            return self
        return replace(
            self, store=self.store.limited_to(table_scope), lake_cache=self.lake_cache.limited_to(table_scope)
        )


def request_context(request: Request) -> Context:
    """Return the process's context, limited to the tables of the caller; the dependency ``ContextDep``."""
    whole = cast(Context, request.app.state.context)
    caller = getattr(request.state, "caller", None)
    return whole if caller is None else whole.limited_to(caller.table_scope)


ContextDep = Annotated[Context, Depends(request_context)]
