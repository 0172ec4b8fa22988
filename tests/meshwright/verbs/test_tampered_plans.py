"""A plan file that says anything else than what was planned is refused, or `verify` names what is wrong in it."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import SHOP
from effort import number, spread

from cost_models.errors import InputError
from meshwright.cli import main
from meshwright.verbs.contract import verbs_of_plan
from meshwright.verbs.verify import _read, verify
from planner.search.search import Budget
from planner.serving import ServingPlan
from planner.verify import Check

PLANNED = {
    "transformer": "gpt2-tiny dgx-a100-80gb --gpus 2 --global-batch 8 --sequence 64 --fix tp=1 --fix pp=1",
    "pools": "gpt2-tiny dgx-a100-80gb:8+dgx-h100:8 --global-batch 16 --sequence 64 --fix tp=1 --fix zero=1 --fix mbs=1",
    "clusters": "gpt2-tiny dgx-a100-80gb,dgx-h100 --gpus 2,4 --global-batch 8 --sequence 64 --tokens 1B"
    " --price 1.5,2.5 --fix pp=1 --fix mbs=1 --fix tp=1 --fix zero=1",
    "sharding": "shop.yaml dgx-h100 --gpus 2 --global-batch 8K",
    "cache": "shop.yaml dgx-h100 --gpus 1 --serve --cache 64MiB",
}
VOCABULARIES = (
    *(("bf16", "fp32", "fp16"), ("none", "selective", "full"), ("step", "torchrec"), ("adamw", "sgd")),
    *(("time", "mfu"), ("1f1b", "gpipe"), ("hottest", "lru")),
)
INPUTS = {"model", "cluster", "training", "stack", "hardware", "embedding", "question", "confidence", "risk"}
"""What the user gave: with another word in it, the file is of another question, and true if nothing else changes."""
INNER_INPUTS = {"recommendation": {"asked", "top"}, "certificate": {"objective"}, "objective": set[str]()}
INNER_INPUTS["objective"] |= {"name", "price", "deadline", "operations", "gpus", "precisions", "offers"}
SAYS_NOTHING = {"meshwright_version"}

Key = tuple[str | int, ...]
DROPPED = object()
Edit = tuple[Key, Any]


def leaves(value: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every single value of a file, and every entry of its lists as one that may be dropped."""
    if isinstance(value, (dict, list)):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*key, name))
            if isinstance(value, list):
                yield (*key, name), DROPPED
    else:
        yield key, value


def changes(value: Any) -> list[Any]:
    """What a value may be edited to: a flag turned, a number a tenth off, another legal word, a number in a text."""
    if value is DROPPED:
        return [DROPPED]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        whole = isinstance(value, int)
        return (
            [max(value + 1, round(value * 1.1)), min(value - 1, round(value * 0.9))]
            if whole
            else ([value * 1.1, value * 0.9] if value else [0.1])
        )
    if not isinstance(value, str):
        return []
    words = [next(one for one in known if one != value) for known in VOCABULARIES if value in known]
    found = re.search(r"\d+", value)
    counted = (
        [] if found is None else [value[: found.start()] + str(int(found[0]) + 1) + value[found.end() :]]
    )
    return words + counted or [value + "x"]


def edited(document: dict[str, Any], key: Key, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    at: Any = changed
    for part in key[:-1]:
        at = at[part]
    if value is DROPPED:
        del at[key[-1]]
    else:
        at[key[-1]] = value
    return changed


def written(document: dict[str, Any]) -> str:
    path = Path("edited.yaml")
    path.write_text(yaml.safe_dump(document, sort_keys=False, explicit_end=True), "utf-8")
    return str(path)


@pytest.fixture(scope="module", params=[*PLANNED])
def planned(request, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("planned")
    (folder / "shop.yaml").write_text(SHOP)
    words = PLANNED[request.param].replace("shop.yaml", str(folder / "shop.yaml"))
    with pytest.raises(SystemExit, match="0"):
        main(["plan", *shlex.split(words), "--quiet", "-o", str(folder / "plan.yaml")])
    read: dict[str, Any] = yaml.safe_load((folder / "plan.yaml").read_text("utf-8"))
    return read


@pytest.fixture
def document(planned, tmp_path, monkeypatch) -> dict[str, Any]:
    """The plan's file, and a folder for its changed copies."""
    monkeypatch.chdir(tmp_path)
    return planned


def is_input(document: dict[str, Any], key: Key) -> bool:
    first, second = (*key, "")[:2]
    own = (
        document.get("recommendation") is None and first == "restrictions"
    )  # else they are those of its kind
    return own or first in INPUTS | SAYS_NOTHING or second in INNER_INPUTS.get(str(first), ())


def first_failure(path: str, budget: Budget) -> Check | None:
    """The first check that fails; later ones, which search, are then left out."""
    plan = _read(path)
    checks = verify(plan) if isinstance(plan, ServingPlan) else verbs_of_plan(plan).verify(plan, budget)
    return next((one for one in checks if one.passed is False), None)


def test_every_edit_is_noticed(document) -> None:
    """Each is refused, or fails a check that names the field or what follows from it; but for another question."""
    edits = [(key, new) for key, old in leaves(document) for new in changes(old)]
    said = [edit for edit in edits if not is_input(document, edit[0])]
    asked = [edit for edit in edits if is_input(document, edit[0])]
    budget, wrong = Budget(), list[tuple[Key, Any, str]]()
    headline = [
        edit for edit in said if edit[0][0] == "certificate" and edit[0][1] in ("value", "bound", "gap")
    ]
    for key, new in [*spread(said, number(10, 10**6)), *headline, *spread(asked, number(2, 10**6))]:
        try:
            failure = first_failure(written(edited(document, key, new)), budget)
        except InputError:
            continue
        if is_input(document, key):  # the derived part follows from it, or does not depend on it
            continue
        if failure is None or not ("`" in failure.what or failure.name in ("fits", "layout", "restrictions")):
            wrong.append((key, new, "unnoticed" if failure is None else failure.what))
    assert wrong == []


@pytest.mark.parametrize("planned", ["clusters"], indirect=True)
@pytest.mark.parametrize("per_node", [7, 9])
def test_nodes_are_those_of_an_offer(document, per_node: int) -> None:
    """Also where the plan takes a part of a node, which both have."""
    failure = first_failure(written(edited(document, ("objective", "gpus_per_node"), per_node)), Budget())
    assert failure is not None
    assert "`gpus_per_node`" in failure.what


@pytest.mark.parametrize("planned", ["cache"], indirect=True)
def test_a_cache_is_of_tables_that_hosts_hold(document, meshwright) -> None:
    small = edited(document, ("question", "cluster", "host_memory"), "1 KiB")
    code, out, _ = meshwright("verify", written(small))
    assert code == 1
    assert "do not fit host memory" in " ".join(out.split())
    code, _, err = meshwright("verify", written(document), "--solver", "ilp")
    assert code == 2
    assert "--solver does not go with" in err


NONSENSE: tuple[Any, ...] = (
    *([], {}, None, float("nan"), float("inf"), -1, 0, 1e308, 10**30, -5.5, "x", "", True, [1, 2], {"a": 1}),
    *("nan", "1e400 GB", "tp2", [None], 1e-300, 3),
)
"""What is put in the place of a value, a list or a whole section."""


def test_nonsense_is_refused_in_words(document, meshwright) -> None:
    """Whatever stands in the file, no verb that reads it crashes; what cannot be is named with its line."""
    rng = np.random.default_rng(len(document["kind"]))
    keys = [key for key, _ in leaves(document)]
    is_cache = document["kind"] == "serving-plan"
    commands = [["verify", "--time-limit", "20"], ["explain"], ["export", "-o", "out", "--to", "megatron"]]
    commands += [] if document["kind"] == "plan" else [["report", "-o", "page.html"]]
    commands = [["verify"], ["serve", "--synthetic", "1"]] if is_cache else commands
    for _ in range(number(6, 300)):
        key = keys[int(rng.integers(len(keys)))]
        key = key[: int(rng.integers(1, len(key) + 1))] if rng.random() < 0.3 else key
        value = NONSENSE[int(rng.integers(len(NONSENSE)))]
        words = commands[int(rng.integers(len(commands)))]
        path = written(edited(document, key, value))
        code, _, err = meshwright(words[0], path, *words[1:])
        assert code in (0, 1, 2), (key, value, words)
        if code == 2:
            assert err.startswith("error: "), (key, value, err)
