# SPDX-License-Identifier: Apache-2.0
"""No code outside a format's package names the format: what it needs it asks of the port."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("lake", "planner", "executors", "service", "migrations")
#: files and folders that name Hudi, each because its users do
EXCEPTIONS = {
    "planner/policy/aliases.py": "settings of other tools that may be pasted into a configuration",
    "planner/writers": "models of writers, by the names and settings of the writers themselves",
    "planner/advice/remedies.py": "settings of these writers",
    "service/cli/commands/simulate.py": "the names of these models, which its user chooses from",
    "service/cli/demo": "the demo shows a Hudi or a Hive table and its writer",
    "service/cli/commands/config_template.py": "the sample rule names a setting of Hudi",
    "lake/formats/iceberg/read/orphans.py": "directories that show a table of another format at the same location",
    "service/control/config/http.py": "the key of Hudi's own commit callback, `hudi_callback_key`",
}
#: a prefix of settings of other tools, as in aliases
_ALIAS = re.compile(r'"hoodie\."')
_NAME = re.compile(r"hudi|hoodie", re.IGNORECASE)


def files(package: str) -> list[Path]:
    paths = (ROOT / package).rglob("*.py")
    return [path for path in paths if not path.is_relative_to(ROOT / "lake" / "formats" / "hudi")]


def excepted(path: Path) -> list[str]:
    return [place for place in EXCEPTIONS if path.is_relative_to(ROOT / place)]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_outside_its_package_names_hudi(package: str):
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files(package)
        if not excepted(path)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _NAME.search(_ALIAS.sub("", line))
    ]
    assert named == []
    assert files(package)


@pytest.mark.parametrize("place", EXCEPTIONS)
def test_every_exception_is_needed(place: str):
    found = [path for package in PACKAGES for path in files(package) if place in excepted(path)]
    assert any(_NAME.search(path.read_text(encoding="utf-8")) for path in found), f"{place}: {EXCEPTIONS[place]}"
