# SPDX-License-Identifier: Apache-2.0
"""The context of request handlers, which the process creates once and routers get through ``ContextDep``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends, Request

from service.control.config.loader import Config
from service.control.config.table_settings import ConfiguredTable, configure_table
from service.control.lake_cache import LakeCache
from service.control.serializers import load_plan_sizes
from service.control.store import Store, TableScope, TableState
from service.server.api.token_cache import TokenCache
from service.server.observability.metrics import Metrics
from service.server.observability.metrics_page import MetricsPage

if TYPE_CHECKING:
    from service.server.api.oidc_provider import OidcProvider

#: roles that serve ``/v1`` and the page besides metrics and health
API_ROLES = ("all", "api")
#: maximum number of plans whose file sizes are kept
_MAX_KEPT_SIZES = 1000


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
    #: tables by name, format and location, each with the configuration from which it has its settings
    _configured: dict[tuple[str, str, str], tuple[Config, ConfiguredTable]] = field(default_factory=dict)
    #: the files of plans by size; the files of a plan never change
    _plan_sizes: dict[str, dict[str, Any]] = field(default_factory=dict)

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

    def plan_sizes(self, plan_ids: Sequence[str]) -> list[dict[str, Any]]:
        """Return the files by size of each of these plans, which the caller may see (``load_plan_sizes``)."""
        kept = {plan_id: self._plan_sizes[plan_id] for plan_id in plan_ids if plan_id in self._plan_sizes}
        missing = [plan_id for plan_id in plan_ids if plan_id not in kept]
        if missing:
            found = load_plan_sizes(self.store, missing)
            if len(self._plan_sizes) + len(found) > _MAX_KEPT_SIZES:
                self._plan_sizes.clear()
            self._plan_sizes.update(found)
            kept |= found
        return [kept[plan_id] for plan_id in plan_ids]

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
