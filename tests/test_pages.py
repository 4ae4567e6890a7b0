# SPDX-License-Identifier: Apache-2.0
"""What the pages claim: what they name is there, their commands can be typed, no page contradicts another."""

import re
from pathlib import Path

import pytest
import yaml
from toys.minimal import MinimalFormat

from lake.capabilities import Fenced, FindsStaged
from lake.formats import FORMATS
from lake.model import TableRef
from lake.ports import FormatFeatures, TableFormat, TableWriter
from service.modes import Role

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
)
_ROOMS = "tests|docs|deploy|bench|service|lake|planner|executors|migrations"
_PATH = re.compile(rf"`((?:{_ROOMS})/[\w./@-]*)`")
_TEST = re.compile(r"`(test_\w+(?:\.py)?)`")
_FILE_AND_TEST = re.compile(r"`(tests/[\w/]+/test_\w+\.py)::(test_\w+)(?:\[[\w-]+\])?`")
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: what readers of the pages have, or are told to set
_GIVEN = {"LAKEFOLD_URL", "LAKEFOLD_TOKEN", "PLAN", "PWD", "HOME"}
#: what a line of a shell block begins with, after variables and a parenthesis; a comment that a line break has cut in
#: two does not
_PROGRAMS = {
    *("lakefold", "make", "python", "pip", "uv", "curl", "export", "umask", "cat", "cp", "rm", "until", "sudo"),
    *("docker", "kubectl", "helm", "sqlite3", "pg_dump", "pg_restore", "spark-submit"),
}


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


def missing_paths(text: str) -> list[str]:
    """Files and folders of the repository that ``text`` names and that are not there; ``NAME`` stands for any."""
    return [path for path in _PATH.findall(text) if "NAME" not in path and not (ROOT / path).exists()]


def contradictions(text: str) -> list[str]:
    """Sentences of ``text`` that say of a place of tables what README's matrix does not."""
    sentences = re.split(r"(?<=[.;:|])\s|\n\n", " ".join(text.split(" ")))
    places = matrix("tables on ")
    wrong = []
    for sentence in (" ".join(one.split()) for one in sentences):
        if places["S3"] == "yes" and "S3" not in sentence and _ONLY_LOCAL.search(sentence):
            wrong.append(sentence)
        for place, answer in places.items():
            refused = rf"\b{place}\b[^|]* (?:is|are) (?:refused|not supported)"
            if answer == "yes" and "other than" not in sentence and re.search(refused, sentence):
                wrong.append(sentence)
            if answer != "yes" and re.search(rf"\b{place}\b (?:is|are) (?:served|supported)", sentence):
                wrong.append(sentence)
    return wrong


_ONLY_LOCAL = re.compile(
    r"\b(?:only|nothing but)\b[^|]*\b(?:local|mounted)\b[^|]* file systems?|"
    r"\b(?:local|mounted)\b[^|]* file systems? only\b",
    re.IGNORECASE,
)


def matrix(beginning: str) -> dict[str, str]:
    """What README's support matrix says of the scan of each row that begins so; one entry for each name in a row."""
    table = (ROOT / "README.md").read_text().split("\n## What is supported\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")
    ]
    found = {}
    for name, scan, *_ in rows:
        if name.startswith(beginning):
            plain = re.sub(r"\(.*?\)+|;.*", "", name.removeprefix(beginning))
            found |= {one.strip(): scan.partition(",")[0] for one in re.split(r",| or ", plain)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_file_that_a_page_names_exists(page: Path):
    assert missing_paths(page.read_text()) == []


def test_a_missing_file_would_be_found():
    assert missing_paths("see `tests/formats/test_gone.py` and `deploy/helm/`") == ["tests/formats/test_gone.py"]


def test_every_test_that_a_page_names_by_its_function_or_file_exists():
    files = list((ROOT / "tests").rglob("test_*.py"))
    known = {path.name for path in files}
    known |= {name for path in files for name in re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE)}
    named = {(ids(page), name) for page in PAGES for name in _TEST.findall(page.read_text())}
    assert len(named) > 10
    assert sorted(entry for entry in named if entry[1] not in known) == []


def test_every_test_that_a_page_names_with_its_file_is_in_that_file():
    named = {(ids(page), *found) for page in PAGES for found in _FILE_AND_TEST.findall(page.read_text())}
    assert len(named) > 200
    assert [
        entry
        for entry in sorted(named)
        if not (ROOT / entry[1]).is_file() or f"def {entry[2]}(" not in (ROOT / entry[1]).read_text()
    ] == []


def test_the_files_in_the_first_column_of_deploys_table_exist():
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "deploy/README.md").read_text(), re.MULTILINE)
    named = [path for row in rows for path in re.findall(r"`([\w./@-]+)`", row)]
    assert len(named) > 7
    assert [path for path in named if not (ROOT / "deploy" / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_units_and_roles_that_a_page_names_exist(page: Path):
    text, roles = page.read_text(), {role.value for role in Role}
    units = re.findall(r"systemctl[\w -]*? (?:--now )?(lakefold\S*?)(?=[`\s]|$)", text)
    assert [unit for unit in units if not (unit.startswith("lakefold@") and unit.partition("@")[2] in roles)] == []
    named = {*re.findall(r"(?<!//)lakefold@(\w+)", text), *re.findall(r"--role (\w+)", text)}
    assert named <= roles


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_on_a_page_need_no_variable_that_a_reader_may_not_have(page: Path):
    for block in _SHELL.findall(page.read_text()):
        used = {*re.findall(r"\$\{?([A-Z_]{3,})", block)}
        assert used <= _GIVEN | {*re.findall(r"\b([A-Z_]{3,})=", block)}, block


def first_words(block: str) -> set[str]:
    """The programs with which the lines of a shell block begin."""
    text = re.sub(r"<<'(\w+)'\n.*?^\1$", "", block.replace("\\\n", " "), flags=re.MULTILINE | re.DOTALL)
    lines = (re.sub(r"^(?:\(|[A-Z_]+=\S*\s+)+", "", line.partition("#")[0].strip()) for line in text.splitlines())
    return {words[0].rpartition("/")[2] for line in lines if (words := line.split())}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_line_of_a_shell_block_begins_with_a_program(page: Path):
    for block in _SHELL.findall(page.read_text()):
        assert first_words(block) <= _PROGRAMS, block


def test_a_comment_that_runs_into_the_next_command_would_be_found():
    assert first_words("cp a b   # a plain copy may be\ninconsistent pg_dump x\n") == {"cp", "inconsistent"}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_a_token_is_written_where_only_its_owner_can_read_it(page: Path):
    for block in _SHELL.findall(page.read_text()):
        for line in block.splitlines():
            assert not re.search(r"tokens add .*>", line) or "umask 077" in line, line


def test_the_formats_of_the_matrix_are_those_of_the_code_and_of_the_page_on_formats():
    of_readme = {
        word.lower()
        for name, scan in matrix("").items()
        if scan == "yes" and (word := re.split(r"\W", name)[0]) in _FORMATS
    }
    assert of_readme == set(FORMATS)
    page = (ROOT / "docs/formats.md").read_text()
    for name in _FORMATS:
        (row,) = re.findall(rf"^\|[^|]*\b{name}\b[^|]*\| (yes|observed only|no)\b", page, re.MULTILINE)
        assert (row != "no") == (name.lower() in FORMATS), name


_FORMATS = ("Hudi", "Hive", "Iceberg", "Delta")


def test_the_minimal_format_has_the_members_of_the_protocols_and_of_the_page():
    section = (ROOT / "docs/adapters.md").read_text().split("## What a minimal format needs\n")[1].split("\n## ")[0]
    table = re.findall(r"^\| (`.*?) \| (format|writer)", section, re.MULTILINE)
    listed = {
        of: {name for row, whose in table if whose == of for name in re.findall(r"`(\w+)`", row)} for _, of in table
    }
    asked = {"format": members(TableFormat, FormatFeatures, FindsStaged), "writer": members(TableWriter, Fenced)}
    assert listed == asked
    writer = MinimalFormat().writer(TableRef(name="t", format="minimal", location="/nowhere"), lambda: None)
    assert {"format": public(MinimalFormat()), "writer": public(writer)} == asked
    assert len((ROOT / "tests/toys/minimal.py").read_text().splitlines()) <= 250


def members(*protocols: type) -> set[str]:
    return {name for one in protocols for name in (*vars(one), *one.__annotations__) if not name.startswith("_")}


def public(one: object) -> set[str]:
    return {name for name in dir(one) if not name.startswith("_")}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "deploy/helm/lakefold/values.yaml"], ids=ids)
def test_no_page_contradicts_the_matrix_on_where_tables_may_be(page: Path):
    assert contradictions(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_alerts_and_dashboards_are_as_many_as_a_page_says(page: Path):
    alerts = (ROOT / "deploy/prometheus/rules.yaml").read_text().count("- alert: ")
    there = {"alerts": alerts, "dashboards": len([*(ROOT / "deploy/grafana").glob("**/*.json")])}
    assert all(there.values())
    said = re.findall(r"\b(\w+) (?:\w+ )?(alerts|dashboards) (?:in|are|with|for)\b", page.read_text())
    assert [(count, what) for count, what in said if number(count.lower()) not in (None, there[what])] == []


def test_the_sizes_on_kubernetes_are_those_of_the_chart():
    values = yaml.safe_load((ROOT / "deploy/helm/lakefold/values.yaml").read_text())
    page = (ROOT / "docs/sizing.md").read_text().split("\n## On Kubernetes\n")[1]
    rows = {cells[1]: cells[2:] for line in page.splitlines() if len(cells := re.split(r" *\| *", line)) > 5}
    for role in ("scheduler", "api"):
        replicas, cpu, memory, *_ = rows[role]
        asked, most = (values[role]["resources"][kind] for kind in ("requests", "limits"))
        assert int(replicas[0]) == values[role]["replicas"]
        assert cpu.split(";")[0] == asked["cpu"]
        words = memory.replace(" MiB", "Mi").replace(" GiB", "Gi")
        assert words == f"{asked['memory']} requested, {most['memory']} at most"
    executor = values["executor"]["resources"]
    assert rows["executor"][1].startswith(f"{executor['requests']['cpu']} and more")
    assert rows["executor"][2].startswith("`spark.driver.memory` + 2 GiB")
    heap = int(values["spark"]["settings"]["spark.driver.memory"].removesuffix("g"))
    assert executor["limits"]["memory"] == executor["requests"]["memory"] == f"{heap + 2}Gi"


def number(word: str) -> int | None:
    """A number in digits or in words; None where it is none."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    return int(word) if word.isdigit() else words.index(word) if word in words else None


#: what an English-speaking reader stumbled over; something plainer stands there now
_STUMBLED_OVER = (
    "proved equal to what was read",
    "A writer is never overwritten",
    "only take each other's plans away",
    "tells of plans that end",
    "tells of itself in",
    "needs no token on this machine",
    "toml: right",
    "of 3 s ago",
    "of 4 input files",
    "no group of the plan is left",
    "average, a copy would keep them",
    "Heights are square roots",
    "alike since",
    "To let it:",
    "does not know of what they tell",
    "Ask differently",
    "would store {",
    "Sign out me",
    "disappear tomorrow",
    "wait in all",
    "No such thing",
    "for whoever wonders",
    "go on to their end",
    "is no name; use letters",
    "In no case is a row lost",
    "no file stays that nobody knows of",
    "what is found / what",
    "## What wins",
    "## Rooms",
    "One of *logs only*",
    "comes to an end for every valid policy",
)


def test_no_page_has_a_phrase_that_readers_stumbled_over():
    rooms = ("service", "planner", "executors", "lake", "deploy")
    sources = [path for room in rooms for path in (ROOT / room).rglob("*") if path.suffix in _READ]
    said = {path: " ".join(path.read_text().split()) for path in [*PAGES, *sources]}
    assert len(said) > 300
    assert [(ids(path), words) for path, text in said.items() for words in _STUMBLED_OVER if words in text] == []


_READ = (".py", ".html", ".js", ".yaml", ".toml")


def test_a_contradiction_to_the_matrix_would_be_found():
    places = matrix("tables on ")
    assert places == {
        "a local": "yes",
        "mounted file system": "yes",
        "S3": "yes",
        "HDFS": "yes",
        "Google Cloud Storage": "refused",
        "Azure": "refused",
    }
    for claim in (
        "Tables are on a volume, since this version reads local and mounted file systems only.",
        "Tables on S3 are refused.",
        "Azure is supported.",
    ):
        assert contradictions(claim), claim
