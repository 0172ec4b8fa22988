"""The pages say what is so: their commands parse, their links lead somewhere, their YAML is valid."""

from __future__ import annotations

import csv
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from cost_models.files import catalog
from cost_models.files.catalog import KINDS, load_spec
from cost_models.files.loading import resolve_cluster
from meshwright.cli.frame import command_line

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


def parse(command: str) -> None:
    """Read a command line as the program would, without doing anything; raises where it would complain."""
    verb, *words = shlex.split(command.split(" | ")[0].split(" > ")[0], comments=True)[1:]
    if verb.startswith("-") or verb.isupper():
        return
    group = typer.main.get_command(command_line())
    group.commands[verb].make_context(verb, words)  # type: ignore[attr-defined]


COMMANDS = [
    (page.relative_to(ROOT).as_posix(), command)
    for page in PAGES
    for command in dict.fromkeys(commands(page))
]


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_parse(page: str, command: str) -> None:
    parse(command)


def test_a_wrong_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse("meshwright plan gpt2-tiny local --gpu 2")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_resolve(page: Path) -> None:
    targets = [target for target in _LINK.findall(prose(page)) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target.partition("#")[0]).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_yaml_is_valid(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "yaml"):
        kind = re.match(r"kind: (\w+)\n", text)
        if kind is not None:
            path = tmp_path / "sample.yaml"
            path.write_text(text, encoding="utf-8")
            if kind[1] == "cluster":
                resolve_cluster(str(path))
            else:
                load_spec(str(path), KINDS[kind[1]])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_pages_name_exist(page: Path) -> None:
    if page.name != "CHANGELOG.md":  # it tells of files that have gone
        named = _FILE.findall(page.read_text("utf-8"))
        assert [file for file in named if not (ROOT / file).exists()] == []


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_pip_is_to_install_is_there(page: Path) -> None:
    """The project is installed from its clone, with extras that it has, quoted for every shell."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for asked in re.findall(
        r"pip install (?!-e \.)([^`\n]*meshwright[^`\n]*|-e [^`\n]*)", page.read_text("utf-8")
    ):
        found = re.fullmatch(r"-e '\.\[(\w+)\]'", asked)
        assert found, asked
        assert found[1] in extras


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


def test_the_first_screen_of_the_readme_is_an_answer() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    first = text[: text.index("\n```\n") + 5]
    assert len(first.splitlines()) < 25
    assert "\ntrain with " in first
    assert "\nproof " in first


def test_the_table_of_model_types_is_what_was_counted() -> None:
    """Every `model_type` of the raw figures stands on the page, with as many of each verdict."""
    benchmarks = ROOT / "benchmarks"
    with (benchmarks / "hugging_face" / "model_types.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    section = (
        (benchmarks / "hugging_face_cpu2_202611.md").read_text("utf-8").split("## Every `model_type`")[1]
    )
    text = " ".join(section.split())
    of = Counter(row["verdict"] for row in rows)
    assert f"all {len(rows)} `model_type`s" in text
    assert f"**{of['same']} have the same parameters here" in text
    assert f"{of['differs']} differ" in text
    assert f"{of['refused']} are refused, {of['not built']} cannot be built" in text
    same = re.search(r"Same: (.*?)\. ", text)
    assert same is not None
    assert set(same[1].split(", ")) == {row["model_type"] for row in rows if row["verdict"] == "same"}
    words = set(re.findall(r"[\w-]+", text))
    assert {row["model_type"] for row in rows if row["verdict"] == "refused"} <= words
    assert all(row["parameters"] == row["parameters_here"] for row in rows if row["verdict"] == "same")
