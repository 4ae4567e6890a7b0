# SPDX-License-Identifier: Apache-2.0
"""Environment variables with lakefold's prefix that belong to no setting, such as misspelt ones."""

import os
import re

from service.control.config.loader import ENV_PREFIX, SECTIONS
from service.text import did_you_mean

#: variables that lakefold reads although no section of the file has them
OTHER_VARIABLES = frozenset(
    f"{ENV_PREFIX}{name}" for name in ("CACHE", "CONFIG", "DEBUG", "DEMO_SCALE", "FAILPOINTS", "TOKEN", "URL")
)
_SECTIONS = frozenset(f"{ENV_PREFIX}{name.upper()}" for name in (*SECTIONS, "spark", "sources", "defaults", "tables"))
#: Kubernetes sets these in every pod of a namespace with a service called lakefold
_KUBERNETES_SERVICE_LINK = re.compile(
    r"LAKEFOLD(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)"
)


def unknown_variables() -> dict[str, str]:
    """Return the variables of this process that have lakefold's prefix and no meaning, each with an error text.

    A misspelt section or key is not among them: it ends every command with a ConfigError.
    """
    keys = [
        f"{ENV_PREFIX}{section}__{key}".upper() for section, model in SECTIONS.items() for key in model.model_fields
    ]
    known = [*OTHER_VARIABLES, *_SECTIONS, *keys]
    return {
        name: f"environment variable {name} is unknown and has no effect{did_you_mean(name, known)}"
        for name in sorted(os.environ)
        if name.startswith(ENV_PREFIX)
        and "__" not in name
        and name not in OTHER_VARIABLES | _SECTIONS
        and not _KUBERNETES_SERVICE_LINK.fullmatch(name)
    }
