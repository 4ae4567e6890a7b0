# SPDX-License-Identifier: Apache-2.0
"""Variables that look like lakefold's and that nothing reads, such as a misspelt setting."""

import os
import re

from service.control.config.loader import ENV_PREFIX, SECTIONS
from service.text import did_you_mean

#: what is read beside the settings of the file's sections
OTHER_VARIABLES = frozenset(
    f"{ENV_PREFIX}{name}" for name in ("CACHE", "CONFIG", "DEBUG", "DEMO_SCALE", "FAILPOINTS", "TOKEN", "URL")
)
_SECTIONS = frozenset(f"{ENV_PREFIX}{name.upper()}" for name in (*SECTIONS, "spark", "sources", "defaults", "tables"))
#: Kubernetes tells every pod of a service called lakefold, in these
_KUBERNETES_SERVICE_LINK = re.compile(
    r"LAKEFOLD(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)"
)


def unknown_variables() -> dict[str, str]:
    """Variables of this process that begin as lakefold's do and mean nothing, each with what is wrong with it.

    A misspelt section or key is not among them: it ends every command in a ConfigError.
    """
    keys = [
        f"{ENV_PREFIX}{section}__{key}".upper() for section, model in SECTIONS.items() for key in model.model_fields
    ]
    known = [*OTHER_VARIABLES, *_SECTIONS, *keys]
    return {
        name: f"environment variable {name} is read by nothing{did_you_mean(name, known)}"
        for name in sorted(os.environ)
        if name.startswith(ENV_PREFIX)
        and "__" not in name
        and name not in OTHER_VARIABLES | _SECTIONS
        and not _KUBERNETES_SERVICE_LINK.fullmatch(name)
    }
