"""The pages say what is so: their commands parse, their links lead somewhere, their YAML and examples are valid."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from cost_models.axes.layout import parse_layout
from cost_models.files import catalog
from cost_models.files.catalog import KINDS, load_spec
from cost_models.files.loading import resolve_cluster
from meshwright.cli import command_line

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
_FILE = re.compile(
    r"`((?:cost_models|planner|executor|meshwright|tests|benchmarks|tools|notebooks)/[\w/.-]+)`"
)
_DECISION = re.compile(r"\b[Dd]ecisions?[ /](\d{1,4})\b(?!,\d)")
_SPAN = re.compile(r"(?<!`)`(meshwright \w+ [^`\n]+)`(?!`)")


def blocks(page: Path, *languages: str) -> list[str]:
    """The code blocks of a page in some languages."""
    return [text for language, text in _BLOCK.findall(page.read_text("utf-8")) if language in languages]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _BLOCK.sub("", page.read_text("utf-8"))


def commands(page: Path) -> Iterator[str]:
    """Every `meshwright …` line in a page's code blocks, and every such command in its prose."""
    for text in blocks(page, "console", "bash", "sh", ""):
        for line in text.replace("\\\n", " ").splitlines():
            match = re.search(r"(?:^|^\$ |-m |bin/)(meshwright .*)", line.strip())
            if match and not line.startswith("#"):
                yield match[1]
    yield from _SPAN.findall(prose(page))


@cache
def verbs() -> Any:
    """The command line, which takes longer to build than to read most commands."""
    return typer.main.get_command(command_line())


def parse(command: str) -> None:
    """Read a command line as the program would, without doing anything; raises where it would complain."""
    verb, *words = shlex.split(command.split(" | ")[0].split(" > ")[0], comments=True)[1:]
    if verb.startswith("-") or verb.isupper():
        return
    group = verbs()
    group.commands[verb].make_context(verb, words)


def test_commands_parse() -> None:
    told = [(page, command) for page in PAGES for command in dict.fromkeys(commands(page))]
    assert len(told) > 20
    for page, command in told:
        try:
            parse(command)
        except Exception as error:
            error.add_note(f"{page}: {command}")
            raise


def test_links_resolve_and_named_files_exist() -> None:
    for page in PAGES:
        targets = [target for target in _LINK.findall(prose(page)) if "://" not in target]
        assert [one for one in targets if not (page.parent / one.partition("#")[0]).exists()] == [], page
        if page.name != "CHANGELOG.md":  # it tells of files that have gone
            named = _FILE.findall(page.read_text("utf-8"))
            assert [file for file in named if not (ROOT / file).exists()] == [], page


def test_yaml_is_valid(tmp_path) -> None:
    path = tmp_path / "sample.yaml"
    for text in (text for page in PAGES for text in blocks(page, "yaml")):
        if kind := re.match(r"kind: (\w+)\n", text):
            path.write_text(text, encoding="utf-8")
            resolve_cluster(str(path)) if kind[1] == "cluster" else load_spec(str(path), KINDS[kind[1]])


def test_what_pip_is_to_install_is_there() -> None:
    """The project is installed from its clone, with extras that it has, quoted for every shell."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    install = re.compile(r"pip install (?!-e \.)([^`\n]*meshwright[^`\n]*|-e [^`\n]*)")
    for page in PAGES:
        for asked in install.findall(page.read_text("utf-8")):
            found = re.fullmatch(r"-e '\.\[(\w+)\]'", asked)
            assert found, (page, asked)
            assert found[1] in extras


def test_decisions_that_files_refer_to_exist() -> None:
    numbers = {file.name[:4] for file in (ROOT / "docs" / "decisions").glob("*.md")}
    folders = ("cost_models", "planner", "executor", "meshwright", "benchmarks", "docs")
    files = [
        file
        for folder in folders
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".md", ".yaml"}
    ]
    named = {(file, number) for file in files for number in _DECISION.findall(file.read_text("utf-8"))}
    assert [f"{file}: {number}" for file, number in named if number.zfill(4) not in numbers] == []


def test_the_accuracy_page_has_the_profiles_as_shipped() -> None:
    page = (ROOT / "docs" / "concepts" / "accuracy-and-limits.md").read_text("utf-8")
    for name in catalog.names("profiles"):
        profile = catalog.load_profile(name)
        if profile.tier == "profile" and not profile.borrowed_from:
            assert profile.median_error is not None
            ends = f"| {profile.validated_runs} | {100 * profile.median_error:.0f} % |"
            assert re.search(rf"^\| `{name}` \|.*{re.escape(ends)}$", page, re.MULTILINE), name


@pytest.mark.parametrize(
    ("extra", "room"),
    [("bpe", "executor"), ("fp8", "executor"), ("explore", "meshwright/explorer"), ("run", "executor")],
)
def test_hints_of_missing_packages_name_what_the_extra_does(extra: str, room: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    sources = "".join(file.read_text("utf-8") for file in (ROOT / room).rglob("*.py"))
    assert [one for one in extras[extra] if one not in sources] == []
    assert "pip install 'meshwright" not in sources


def test_the_readme_states_the_errors_of_the_sources_left_out() -> None:
    readme, page = (
        " ".join((ROOT / name).read_text("utf-8").split()) for name in ("README.md", "docs/left-out.md")
    )
    found = re.search(
        r"Median of the (\d+) medians ([\d.]+ %), the worst ([\d.]+ %)\..*? of ([\d,]+) runs", page
    )
    assert found is not None
    number, median, worst, runs = found.groups()
    assert f"predicts {runs} published runs" in readme
    assert f"the median of the {number} medians is {median}, the worst {worst} (" in readme


TEXT = (ROOT / "AGENTS.md").read_text("utf-8")


def test_it_is_one_page() -> None:
    assert len(TEXT.split()) <= 400


def test_paths_and_targets_exist() -> None:
    paths = re.findall(r"(?<![\w/-])(?:[a-z_]+/[\w/.-]*|[A-Z]+\.md)", TEXT)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert [
        name for name in re.findall(r"^make (\w+)", TEXT, re.MULTILINE) if f"\n{name}:" not in makefile
    ] == []


def test_layouts_are_layouts() -> None:
    layouts = re.findall(r'[`"]((?:tp|pp|dp)\d[^`"\n]*)[`"]', TEXT)
    assert len(layouts) == 3
    assert [parse_layout(layout).tp for layout in layouts] == [4, 2, 8]
