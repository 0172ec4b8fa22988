"""A new axis is a field with a word, and a line in each list that it needs: toys are written, searched, priced, ruled.

`PLACES` says all that an axis may touch. No other file names an axis that is not its own subject, so a toy that is in
these lists is read, restricted, tried, refused, bounded and run like every other.
"""

from __future__ import annotations

from pathlib import Path

from toy_folder import answer_with, edited

FILE = '''
"""Toys: a switch that saves memory and makes a rank wait, a number of each of two parts, and one that is closed."""

from cost_models.axes.rule import Rule, Words

RULES = (
    Rule(
        "a toy needs two tensor ranks",
        lambda q, x: (x.toy == 1) & (x.tp == 1),
        "`toy` needs tp2 or more, not tp{layout.tp}",
        "leave out `toy`",
    ),
    Rule("toys are for whole states", lambda q, x: (x.toy == 1) & (x.zero == 1), "`toy` does not go with zero1"),
)
RUNNABLE = (
    Rule(
        "toys have no fp8",
        lambda q, x: (x.toy == 1) & (q.training.precision == "fp8"),
        "the executor has no toys in fp8",
    ),
)


no_shelf = Rule(
    "shelves hold toys",
    lambda q, x: (x.toy == 1) & (q.cluster.nodes > 1),
    lambda question, layout: Words("two nodes have no shelf for `toy`"),
)


def toy_seconds(pieces, terms):
    """A toy is waited for, a stash computed; a lent device computes a tenth faster backward."""
    x, forward, backward = pieces.columns, terms["layer_forward"], terms["layer_backward"]
    faster = -0.1 * x.lent[:, None] * backward["compute"]
    return {
        "layer_forward": forward | {"toy": 2e-5 * x.toy, "compute": forward["compute"] + 1e-5 * x.stash_blocks},
        "layer_backward": backward | {"compute": backward["compute"] + faster},
    }


def toy_bytes(pieces, terms):
    x, static = pieces.columns, terms["static"]
    return {"static": static | {"buffers": static["buffers"] - 2.0**28 * (x.toy + x.stash_blocks + x.stash_states)}}


def lends_nothing(question, trainer):
    if question.cluster.num_gpus == 1:
        return "nobody lends one GPU"
    return f"{trainer} lends nothing" if trainer else ""
'''


def _with_import(path: str, names: str, *pairs: tuple[str, str]) -> dict[str, tuple[tuple[str, str], ...]]:
    first = "from __future__ import annotations\n"
    return {path: ((first, f"{first}\n{names}\n"), *pairs)}


PLACES = {
    "cost_models/axes/layout.py": (
        (
            "    recompute: Annotated",
            """    toy: Annotated[bool, Switch()] = False
    stash: Annotated[tuple[int, int], Counts(("blocks", "states"))] = (0, 0)
    lent: Annotated[bool, Switch()] = False
    recompute: Annotated""",
        ),
    ),
    **_with_import(
        "planner/rules/legality.py",
        "import toys",
        ("(*rules(_RULES), *STACK_RULES)", "(*rules(_RULES), *toys.RULES, *STACK_RULES)"),
        ("\nLATE_RULES = (", "\nLATE_RULES = (\n    toys.no_shelf,"),
    ),
    **_with_import(
        "planner/rules/stack.py",
        "import toys",
        ("\nRUNNABLE = rules(_RUNNABLE)", "\nRUNNABLE = (*rules(_RUNNABLE), *toys.RUNNABLE)"),
    ),
    **_with_import(
        "planner/space/axes.py",
        "import toys",
        (
            '    "sp": lambda',
            """    "toy": lambda question, mesh: (0, 1),
    "stash": lambda question, mesh: [(0, 0), (1, 0), (2, 1)],
    "lent": lambda question, mesh: (0, 1),
    "sp": lambda""",
        ),
        ('    "replicas": _opens', '    "lent": toys.lends_nothing,\n    "replicas": _opens'),
    ),
    "cost_models/pipeline/seconds.py": (('("offload", "host"', '("offload", "toy", "host"'),),
    **_with_import(
        "cost_models/pipeline/stage_costs.py",
        "from toys import toy_bytes, toy_seconds",
        (
            "    terms |= offload_seconds(pieces, terms)\n",
            "    terms |= offload_seconds(pieces, terms)\n    terms |= toy_seconds(pieces, terms)\n",
        ),
        (
            "    terms |= offload_bytes(pieces, terms)\n",
            "    terms |= offload_bytes(pieces, terms)\n    terms |= toy_bytes(pieces, terms)\n",
        ),
    ),
}
"""File → where a new axis has a line of its own: always the field with its word; a rule, values that the search tries,
a reason why it is closed, seconds, bytes, a part of a step. Its hook in the executor is `test_axis_contract`'s subject.
"""
ASKED = """
import json
from dataclasses import replace
import numpy as np
from cost_models.axes.layout import axes_that_differ
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.specs.training import TrainingSpec
from meshwright.render.estimates import estimate_text
from planner.bounds.cores import ideal_seconds
from planner.rules.legality import check
from planner.space.space import legal_space
from planner.space.obstacles import notes_of
from planner.search.search import search
from planner.space.space import enumerate_layouts
from planner.space.obstacles import obstacles
from planner.space.restrictions import parse_restrictions

def refused(make):
    try:
        make()
    except InputError as error:
        return [str(problem) for problem in error.problems] or [error.headline]

training = TrainingSpec(global_batch=16, sequence_length=1024, recompute=("none",))
cluster = resolve_cluster("dgx-a100-80gb", 4)
question = complete_question(catalog.load_model("gpt2-small"), cluster, training)
text = "tp2 pp1 dp2 mbs1 zero0 toy stash=blocks:2/states:1"
layout = parse_layout(text)

def found(*fix, forbid=()):
    return enumerate_layouts(question, parse_restrictions(fix, forbid))

def best(max_memory, *fix, forbid=()):
    limits = replace(parse_restrictions(("pp=1", "mbs=1", *fix), forbid), max_memory=max_memory)
    every = enumerate_layouts(question, limits)
    priced = [estimate(question, every.layout(row)) for row in range(len(every))]
    priced = [one for one in priced if one.peak_bytes <= max_memory]
    least = min(one.step_seconds for one in priced)
    own = search(question, top=1, restrictions=limits)
    assert own.certificate.gap == 0
    return own.best.step_seconds / least, str(own.best.layout)

plain, toyed = found(forbid=("toy", "stash_blocks")), found("toy", "stash_states=1")
least = min(
    estimate(question, plain.layout(row)).peak_bytes for row in range(len(plain)) if plain.pp[row] == 1
)
def lowest(limits):
    space = legal_space(question, limits)
    return float(ideal_seconds(space, np.array([True, False, False])).min())

def opened(**limits):
    found = search(question, top=1, restrictions=parse_restrictions(("pp=1",), (), **limits))
    return found.best.step_seconds, str(found.best.layout)
lend, priced = parse_restrictions(("pp=1",), (), allow=("lent",)), estimate(question, layout)
one_gpu = resolve_cluster("dgx-a100-80gb", 1)
fp8 = training.model_copy(update={"precision": "fp8"})
own = replace(question, stack=catalog.load_stack("meshwright"), training=fp8)
two = replace(question, cluster=cluster.model_copy(update={"gpus_per_node": 2, "nodes": 2}))
slower = estimate(question, layout).step_seconds - estimate(question, Layout(tp=2, dp=2)).step_seconds
print(json.dumps({
    "written": str(layout),
    "columns": str(LayoutColumns.of([layout]).layout(0)),
    "wrong": refused(lambda: parse_layout("toy=2 stash=rows:1")),
    "fixed": [sorted({int(n) for n in column}) for column in (toyed.toy, toyed.stash_blocks, toyed.stash_states)],
    "ruled": [sorted({int(n) for n in column}) for column in (toyed.tp, toyed.zero)],
    "plain": [int(plain.toy.max()), int(plain.stash_blocks.max()), len(plain)],
    "all": len(found()),
    "words": parse_restrictions(("toy", "stash_blocks>=1"), ()).flags,
    "unread": refused(lambda: parse_restrictions(("toy>=1", "stash=2"), ())),
    "problem": [problem.what for problem in check(question, parse_layout("dp4 toy"))],
    "obstacle": [words.what for words in obstacles(question, parse_restrictions(("toy", "tp=1"), ()))],
    "part": priced.time["toy"],
    "text": estimate_text(priced).split(),
    "closed": [opened(), opened(allow=("lent",))],
    "bound": lowest(lend) <= opened(allow=("lent",))[0],
    "alone": notes_of(replace(question, cluster=one_gpu), parse_restrictions(allow=("lent",)))[-1],
    "note": notes_of(question, parse_restrictions(allow=("lent",), trainer="megatron"))[-1],
    "differ": axes_that_differ(parse_layout("tp2 lent"), parse_layout("tp2")),
    "executor": [one.what for one in check(own, layout)],
    "late": [one.what for one in check(two, parse_layout("tp2 dp2 toy"))],
    "slower": slower,
    "roomy": best(2.0**40),
    "tight": best(least - 2**27),
}))
"""


def test_an_axis_is_a_field_a_word_and_a_line_in_each_list_it_needs(tmp_path: Path) -> None:
    (tmp_path / "toys.py").write_text(FILE, encoding="utf-8")
    edited(tmp_path, PLACES)
    answers = answer_with(tmp_path, ASKED)
    assert answers["written"] == answers["columns"] == "tp2 pp1 dp2 mbs1 zero0 toy stash=blocks:2/states:1"
    assert answers["wrong"] == [
        "`toy=2`: not part of a layout; did you mean `toy`?",
        "`stash`: `rows:1` is not a part like those of `blocks:1/states:1`",
    ]
    assert answers["fixed"] == [[1], [2], [1]]
    assert answers["ruled"] == [[2, 4], [0]]
    assert answers["plain"][:2] == [0, 0]
    assert answers["all"] > 3 * answers["plain"][2]
    assert answers["words"] == ["--fix toy=1", "--fix stash_blocks>=1"]
    assert answers["unread"][0] == "--fix toy>=1: `toy` is a switch, not a number"
    assert "`stash` is not part of a layout" in answers["unread"][1]
    assert answers["problem"] == ["`toy` needs tp2 or more, not tp1"]
    assert answers["obstacle"] == ["`toy` needs tp2 or more, not tp1"]
    rounding = 1 - 1e-9
    assert 12 * 8 * 4e-5 * rounding <= answers["slower"] <= 2 * 12 * 8 * 4e-5
    for ratio, layout in (answers["roomy"], answers["tight"]):
        assert abs(ratio - 1) < 1e-9
        assert ("stash" in layout or "toy" in layout) == (layout == answers["tight"][1])
    assert answers["part"] >= 12 * 8 * 2e-5 * rounding
    assert "toy" in answers["text"]
    (alone, without), (faster, lent) = answers["closed"]
    assert "lent" not in without
    assert "lent" in lent
    assert answers["bound"]
    assert faster < alone
    assert answers["alone"] == "--allow lent opens nothing: nobody lends one GPU"
    assert answers["note"] == "--allow lent opens nothing: megatron lends nothing"
    assert answers["differ"] == ["lent"]
    assert "the executor has no toys in fp8" in answers["executor"]
    assert answers["late"] == ["two nodes have no shelf for `toy`"]
