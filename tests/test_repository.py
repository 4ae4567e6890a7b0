# SPDX-License-Identifier: Apache-2.0
"""The repository keeps what its pages promise: rooms, licences, contracts, samples that work, links that lead."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from service.cli import main
from service.control.config.loader import load_config
from service.control.config.table_settings import check_rules

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
README = (ROOT / "README.md").read_text()
#: whom a test is left to in `make test`, and the test
SHOWN_BY = r"@pytest\.mark\.shown_by\(((?:\s*\"[^\"]+\")+)\s*\)\n(?:@.*\n)*(?:class|def) (\w+)"


def tracked() -> list[Path]:
    """Every file of the repository as git knows it; those that were deleted but not yet committed are left out."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in sorted(set(listed.stdout.split("\0")) - {""}) if (path := ROOT / name).is_file()]


def text_files() -> list[Path]:
    return [path for path in tracked() if b"\0" not in path.read_bytes()[:8000]]


def section(title: str) -> str:
    """What README says below a heading, down to the next one."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def fenced(text: str, language: str = "") -> str:
    """The first code block of a language."""
    match = re.search(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert match, f"no ```{language} block"
    return match.group(1)


def test_readme_gives_purpose_then_installation_and_only_later_the_architecture():
    _, first, second = (line for line in README.splitlines()[:4] if line)
    assert "data lake" in first
    assert "platform teams" in first + second
    headings = re.findall(r"^## (.+)$", README, re.MULTILINE)
    assert headings[:3] == ["Install", "Try it", "Why it is safe"]
    assert headings.index("What is supported") < headings.index("Architecture") < headings.index("Contributing")


def test_each_box_of_the_rooms_picture_is_a_folder_of_that_name():
    boxes = re.findall(r"│ ([a-z]+)/", fenced(section("Architecture")))
    assert sorted(boxes) == [
        "bench",
        "deploy",
        "docs",
        "executors",
        "lake",
        "migrations",
        "planner",
        "service",
        "tests",
    ]
    for box in boxes:
        assert (ROOT / box).is_dir(), f"README's picture has {box}/, the repository has not"
        assert any(path.is_relative_to(ROOT / box) for path in tracked()), f"{box}/ is empty"


def test_every_python_package_and_folder_at_the_top_is_in_the_rooms_picture():
    boxes = set(re.findall(r"│ ([a-z]+)/", fenced(section("Architecture"))))
    folders = {path.relative_to(ROOT).parts[0] for path in tracked() if path.parent != ROOT}
    assert folders - {".ci", "requirements"} == boxes


def rooms_of(package: str) -> set[str]:
    """The packages and modules right below ``package``."""
    return {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"} | {
        path.parent.name for path in (ROOT / package).glob("*/__init__.py")
    }


def floors_of(container: str) -> set[str]:
    """The rooms of which the contract of layers inside ``container`` knows."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (floors,) = (contract["layers"] for contract in contracts if contract.get("containers") == [container])
    return {room for floor in floors for room in floor.split(" | ")}


STOREYS = ("service/cli", "service/server", "service/control")


def described_rooms(package: str) -> set[str]:
    """The packages and modules that docs/architecture.md describes in the section of ``package``."""
    described = (ROOT / "docs" / "architecture.md").read_text()
    table = described.split(f"## Inside `{package}/`\n")[1].split("\n## ")[0]
    rows = "\n".join(line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `"))
    return set(re.findall(r"`([a-z_]+)(?:/|\.py)`", rows))


@pytest.mark.parametrize(
    "package", ["service", *STOREYS, "lake/formats/hudi", "lake/formats/hive", "executors/engines"]
)
def test_the_contract_has_every_room_of_a_package(package: str):
    assert floors_of(package.replace("/", ".")) == rooms_of(package)


@pytest.mark.parametrize("package", [*STOREYS, "lake/formats/hudi", "lake/formats/hive"])
def test_the_page_of_the_architecture_has_every_room_of_a_package(package: str):
    assert described_rooms(package) == rooms_of(package)


def test_the_packages_and_modules_below_service_planner_executors_and_lake_are_in_the_table_of_packages():
    described = (ROOT / "docs" / "architecture.md").read_text()
    table = described.split("## Packages\n")[1].split("\n## ")[0]
    for package in ("service", "planner", "executors", "lake"):
        named = set(re.findall(rf"`{package}/([a-z_]+)(?:/|\.py)`", table))
        assert named == {room for room in rooms_of(package) if room != "version"}, package


def test_readmes_picture_has_the_rooms_of_each_storey_of_service():
    box = fenced(section("Architecture")).split("planner/")[0]
    storeys = re.split(r"│ +(cli|server|control) ", box)
    assert storeys[1::2] == [storey.removeprefix("service/") for storey in STOREYS]
    for storey, rooms in zip(STOREYS, storeys[2::2], strict=True):
        packages = rooms_of(storey) - {"main", "wiring", "lake_cache"}
        assert set(re.findall(r"[a-z_]+", rooms)) >= packages, storey


@pytest.mark.parametrize(("package", "most"), [("service", 8), ("lake/formats/hudi", 6)])
def test_the_root_of_a_package_with_rooms_has_few_files(package: str, most: int):
    assert len(list((ROOT / package).glob("*.py"))) <= most


def test_every_python_and_shell_file_begins_with_its_licence():
    unmarked = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if path.suffix in (".py", ".sh") and "SPDX-License-Identifier: Apache-2.0" not in path.read_text()[:200]
    ]
    assert unmarked == []


def test_the_import_contracts_hold():
    done = subprocess.run(
        [str(BIN / "lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "0 broken" in done.stdout


#: what only one machine, or only one network, would understand
_LOCAL = re.compile(
    r"(?<![\w.}])/(?:work|home|root|Users)/[\w.-]+|https?://(?:\w+[.-])*(?:artifactory|nexus|mirror|proxy)[\w.-]*|"
    r"--(?:extra-)?index-url|files\.pythonhosted\.org|pypi\.org/simple"
)


def test_no_file_names_a_machine_or_a_registry():
    found = []
    for path in text_files():
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if _LOCAL.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert found == []


def test_no_file_has_both_sides_of_a_merge():
    marker = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
    assert [str(path) for path in text_files() if marker.search(path.read_text(errors="replace"))] == []


@pytest.mark.parametrize(("broken", "ran"), [("", ["lint", "test"]), ("test", ["lint", "test"]), ("lint", ["lint"])])
def test_ci_fails_on_a_lint_error_and_on_a_failing_test(tmp_path, broken, ran):
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "$1" >> "{tmp_path}/ran"\n[ "$1" != "{broken}" ]\n')
    make.chmod(0o755)
    done = subprocess.run(
        [ROOT / ".ci" / "run"], env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False
    )
    assert ((tmp_path / "ran").read_text().split(), done.returncode == 0) == (ran, not broken)


def test_readmes_configuration_is_valid_and_has_the_stated_defaults(tmp_path, capsys):
    sample = fenced(section("Configuration"), "toml")
    document = tomllib.loads(sample)
    lake = tmp_path / "lake"
    lake.mkdir()
    assert document["sources"][0]["path"] == "/data/lake"
    config = tmp_path / "lakefold.toml"
    config.write_text(sample.replace('"/data/lake"', f'"{lake}"'))
    code = main.run(["config", "check", "--config", str(config)])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert out.splitlines()[0] == f"{config}: OK (0 tables)"

    from lake.units import parse_bytes, parse_duration
    from planner.policy.policy import SizingPolicy

    policy, said = SizingPolicy(), document["defaults"]
    assert parse_bytes(said.pop("small_file_limit")) == policy.small_file_limit_bytes
    assert parse_bytes(said.pop("target_file_max")) == policy.target_file_max_bytes
    assert parse_duration(said.pop("quiet_period")) == policy.quiet_period
    assert parse_duration(said.pop("retention")) == policy.retention
    assert said == {}


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").rglob("*.toml")), ids=lambda path: path.name)
def test_the_sample_configurations_are_valid(path):
    check_rules(load_config(path))


def test_the_sample_configuration_is_valid_with_its_comments_taken_away(tmp_path):
    text = (ROOT / "deploy" / "lakefold.toml").read_text()
    uncommented = re.sub(r'^# (\[|"|path|match|mode|concurrency)', r"\1", text, flags=re.MULTILINE)
    assert uncommented.count("\n[[") == 2
    (tmp_path / "lakefold.toml").write_text(uncommented)
    config = load_config(tmp_path / "lakefold.toml")
    check_rules(config)
    assert config.table_rules[0].mode == "compact"
    assert list(config.table_rules[0].write_options) == ["hoodie.write.lock.provider"]


def test_every_link_in_the_pages_has_a_target():
    links = [
        (page, target)
        for page in tracked()
        if page.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target
    ]
    assert len(links) > 10
    broken = [f"{page.relative_to(ROOT)}: {target}" for page, target in links if not (page.parent / target).exists()]
    assert broken == []


def test_every_heading_that_a_link_names_exists():
    links = [
        (page, (page.parent / target).resolve() if target else page, heading)
        for page in tracked()
        if page.suffix == ".md"
        for target, heading in re.findall(r"\]\(([^)#\s:]*)#([^)]+)\)", page.read_text())
    ]
    headings = {target: headings_of(target.read_text()) for _, target, _ in links if target.suffix == ".md"}
    assert len(headings) > 10
    lost = [(page, target, one) for page, target, one in links if one not in headings.get(target, {one})]
    assert [f"{page.relative_to(ROOT)}: {target.name}#{one}" for page, target, one in lost] == []


def headings_of(page: str) -> set[str]:
    """The names under which a page's headings are linked to."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    titles = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)]
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_every_path_that_a_page_for_developers_names_exists(page):
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`((?:tests|docs|deploy|bench|service|lake|planner|executors|migrations)/[\w./]*)`", text))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def named_commands(page: str) -> list[list[str]]:
    """The words of each lakefold command in shell blocks and code spans, up to the shell's next operator."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL))
    texts = [line.partition(" #")[0] for line in lines] + [" ".join(span.split()) for span in spans]
    found = (text for part in texts for text in re.split(r"&&|\|\||[;()\n]| [|>] ", part))
    # What stands before the name in a span is a variable or a program that runs it; elsewhere it is prose.
    command = re.compile(r"\s*(?:(?:until|exec|[A-Z_]+=\S*) )*lakefold (\S.*)")
    return [match[1].split() for text in found if (match := command.match(text))]


def unknown_word(words: list[str]) -> str | None:
    """The first command or option that lakefold has not; None where it has them all."""
    command = main.root_command()
    options = {name: option for option in command.params for name in option.opts}
    left = iter(words)
    for word in left:
        name = word.partition("=")[0]
        if word == "--":
            return None
        if word.startswith("-"):
            if name not in options and name not in ("-h", "--help"):
                return word
            if name in options and "=" not in word and not options[name].is_flag:
                next(left, None)
        elif hasattr(command, "commands"):
            if word not in command.commands:
                return word
            command = command.commands[word]
            options = {name: option for option in command.params for name in option.opts}
    return None


def test_every_command_and_option_that_a_page_names_exists():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    named = [(page.name, words) for page in pages for words in named_commands(page.read_text())]
    assert len(named) > 100
    unknown = [(page, " ".join(words), word) for page, words in named if (word := unknown_word(words))]
    assert unknown == []
    assert unknown_word(["plans", "frob"]) == "frob"
    assert unknown_word(["--url", "x", "plans", "list", "--frob"]) == "--frob"


def test_every_test_file_has_a_name_of_its_own():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), "two files of one name can't be collected in one run"


def test_a_test_with_the_mark_shown_by_names_a_test_that_make_test_runs():
    tests = {
        path: path.read_text() for path in tracked() if path.is_relative_to(ROOT / "tests") and path.suffix == ".py"
    }
    marks = [
        (path, "".join(re.findall(r"\"([^\"]+)\"", by)), name)
        for path, text in tests.items()
        for by, name in re.findall(SHOWN_BY, text)
    ]
    assert marks
    left = {f"{path.relative_to(ROOT)}::{name}" for path, _, name in marks}
    for path, by, name in marks:
        file, _, test = by.partition("::")
        assert re.search(rf"^(?:class|def) {test}\b", tests.get(ROOT / file, ""), re.MULTILINE), f"{name}: no {by}"
        assert by not in left, f"{path.name}: {name} is left to {by}, which make test leaves to yet another one"


def test_every_test_that_the_table_of_hazards_names_exists():
    page = (ROOT / "docs" / "reliability.md").read_text().partition("## Measured")[0]
    named = re.findall(r"`(tests/[\w/]+/test_\w+\.py)(?:::(test_\w+)(\[[\w-]+\])?)?`", page)
    assert len(named) > 30
    missing = [
        f"{path}::{function}{case}"
        for path, function, case in named
        if not (file := ROOT / path).is_file()
        or (function and f"def {function}(" not in file.read_text())
        or (case and f'"{case[1:-1]}":' not in (file.parent / "defects.py").read_text())
    ]
    assert missing == []
