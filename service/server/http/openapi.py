# SPDX-License-Identifier: Apache-2.0
"""The generator of docs/openapi.json: ``python -m service.server.http.openapi``."""

import json
from pathlib import Path

from service.server.http.app import openapi_document

PAGE = Path(__file__).parents[3] / "docs" / "openapi.json"


def render() -> str:
    """Return the content of the file."""
    return json.dumps(openapi_document(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
