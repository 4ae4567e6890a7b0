# SPDX-License-Identifier: Apache-2.0
"""The language of the code and of its pages: plain words, one name for one thing, short lists of parameters."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ("lake", "planner", "executors", "service")
SOURCES = sorted(path for package in PRODUCT for path in (ROOT / package).rglob("*.py"))
#: what people read: code with its docstrings and messages, templates, the pages of docs, alerts and dashboards
PAGES = sorted(
    [
        *SOURCES,
        *(ROOT / f"{page}.md" for page in ("README", "CONTRIBUTING", "SECURITY")),
        *(ROOT / "docs").rglob("*.md"),
    ]
    + [path for package in PRODUCT for path in (ROOT / package).rglob("*.html")]
    + [path for kind in ("md", "yaml", "json", "toml") for path in (ROOT / "deploy").rglob(f"*.{kind}")]
)
#: words that hide who does something, and turns of phrase that are not English
AVOIDED = (
    r"nobody|somebody|whoever|anybody|made anew|all the same|by now|not(?: \w+){0,4} any more|no(?: \w+){1,4} any more"
    r"|is had|none is"
)
#: sentences in databases of earlier releases, which are compared with them
STORED = ("RECREATED = ",)
#: classes that are the same thing in two places, each with the reason
SAME_NAME: dict[str, str] = {}


def lines_with(pattern: str, paths: list[Path]) -> list[str]:
    """The places of ``pattern``, also where a line break stands between its words."""
    found = []
    for path in paths:
        text = "".join("\n" if part.startswith(STORED) else part for part in path.read_text().splitlines(keepends=True))
        for match in re.finditer(rf"\b(?:{pattern})\b".replace(" ", r"\s+"), text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {' '.join(match.group().split())}")
    return found


def test_code_and_docs_use_none_of_the_words_that_hide_who_acts():
    assert lines_with(AVOIDED, PAGES) == []


def test_no_two_classes_of_the_product_have_one_name():
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name not in SAME_NAME:
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def _is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether typer or FastAPI calls the function: its parameters are then options of a command or of a query."""
    return any(re.search(r"\b(?:app|commands|router)\b", ast.unparse(mark)) for mark in function.decorator_list)


def test_no_function_has_more_than_seven_parameters():
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_command(node):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if sum(one.arg not in ("self", "cls") for one in given) > 7:
                    found.add(f"{path.relative_to(ROOT)} {node.name}")
    assert found == set()


def test_the_formatter_decides_the_layout_with_at_most_ten_exceptions():
    paths = [path for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    assert len(lines_with("fmt: skip", [path for path in paths if path != Path(__file__)])) <= 10
