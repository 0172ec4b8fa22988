"""An axis is one file and its field in the table: toy ones are written, restricted, searched, ruled and priced."""

from __future__ import annotations

from pathlib import Path

from toy_folder import answer_with, copied

FILE = '''
"""Toys: a switch that saves memory and makes a rank wait, a number of each of two parts, and one that is closed."""

import numpy as np

from cost_models.axes.axis import Axis, Price, more
from cost_models.axes.rule import Rule, Words
from cost_models.axes.words import Counts, Switch

TOY = Axis(
    word=Switch(),
    text="Buffers are toys.",
    values=lambda question, mesh: (0, 1),
    rules=(
        Rule(
            name="a toy needs two tensor ranks",
            broken=lambda q, x: (x.toy == 1) & (x.tp == 1),
            sentence=lambda q, layout: Words(f"`toy` needs tp2 or more, not tp{layout.tp}", "leave out `toy`"),
        ),
        Rule(
            name="toys are for whole states",
            broken=lambda q, x: (x.toy == 1) & (x.zero == 1),
            sentence=lambda q, layout: Words("`toy` does not go with zero1"),
        ),
    ),
    executor_rules=(
        Rule(
            name="toys have no fp8",
            broken=lambda q, x: (x.toy == 1) & (q.training.precision == "fp8"),
            sentence=lambda q, layout: Words("the executor has no toys in fp8"),
        ),
    ),
    late_rules=(
        Rule(
            name="shelves hold toys",
            broken=lambda q, x: (x.toy == 1) & (q.cluster.nodes > 1),
            sentence=lambda q, layout: Words("two nodes have no shelf for `toy`"),
        ),
    ),
    placed_rule=lambda layout, least: Words("toys want two blocks") if layout.toy and least < 2 else None,
    time_part="toy",
    price=Price(
        seconds=lambda p, terms: more(terms, {"layer_forward": {"toy": 2e-5 * p.columns.toy}}),
        bytes=lambda p, terms: more(terms, {"static": {"buffers": -float(2**28) * p.columns.toy}}),
    ),
    executor="toy_hook:Toys",
)
STASH = Axis(
    word=Counts(parts=("blocks", "states")),
    values=lambda question, mesh: [(0, 0), (1, 0), (2, 1)],
    price=Price(
        seconds=lambda p, terms: more(terms, {"layer_forward": {"compute": 1e-5 * p.columns.stash_blocks}}),
        bytes=lambda p, terms: more(
            terms, {"static": {"buffers": -float(2**28) * (p.columns.stash_blocks + p.columns.stash_states)}}
        ),
    ),
)


def _lent(pieces, terms):
    """A lent device computes a tenth faster backward."""
    share = -0.1 * pieces.columns.lent[:, None]
    return more(terms, {"layer_backward": {"compute": share * terms["layer_backward"]["compute"]}})


LENT = Axis(
    word=Switch(),
    values=lambda question, mesh: (0, 1),
    closed=True,
    compared=lambda value: "lent" if value else "own",
    opens_nothing=lambda question, trainer: (
        "nobody lends one GPU" if question.cluster.num_gpus == 1 else f"{trainer} lends nothing" if trainer else ""
    ),
    price=Price(seconds=_lent),
)
'''
HOOK = '''
from executor.axes.axis import Axis


class Toys(Axis):
    """Counts its steps."""

    steps = 0

    @classmethod
    def wanted(cls, layout):
        return layout.toy

    def end_step(self):
        self.steps += 1
'''
IMPORT = "from cost_models.axes.toy import LENT, STASH, TOY\n"
FIELDS = """    toy: Annotated[bool, TOY] = False
    stash: Annotated[tuple[int, int], STASH] = (0, 0)
    lent: Annotated[bool, LENT] = False
"""
ASKED = """
import json
import sys
from dataclasses import replace
import numpy as np
import torch
from cost_models.axes.axis import loaded
from cost_models.axes.layout import AXES, axes_that_differ
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.estimating import estimate
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.specs.training import TrainingSpec
from executor.axes.axis import Axis as Hook
from executor.emulate.alone import alone
from executor.engine.engine import Engine
from executor.run_config import EngineOptions
from meshwright.render.estimates import estimate_text
from planner.bounds.relaxed import ideal_seconds
from planner.rules.legality import check
from planner.space.layouts import legal_space
from planner.space.notes import notes_of
from planner.search.search import search
from planner.space.layouts import enumerate_layouts
from planner.space.obstacles import obstacles
from planner.space.restriction_words import parse_restrictions

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
    limits = replace(parse_restrictions(("pp=1", *fix), forbid), max_memory=max_memory)
    every = map(enumerate_layouts(question, limits).layout, range(len(enumerate_layouts(question, limits))))
    priced = [one for one in (estimate(question, layout) for layout in every) if one.peak_bytes <= max_memory]
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

def emulated():
    sys.path[:0] = [TESTS]
    from training import GPT, plan_for
    plan = plan_for("tp2 mbs2 toy", GPT)
    tokens = torch.zeros(plan.training.global_batch, plan.training.sequence_length, dtype=torch.long)
    with alone(0, 2):
        engine = Engine(plan, torch.device("cpu"), EngineOptions())
        engine.step(tokens, tokens)
        engine.end_step()
    return engine.axis(loaded(AXES["toy"].executor)).steps

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
    "says": AXES["toy"].text,
    "closed": [opened(), opened(allow=("lent",))],
    "bound": lowest(lend) <= opened(allow=("lent",))[0],
    "alone": notes_of(replace(question, cluster=one_gpu), parse_restrictions(allow=("lent",)))[-1],
    "note": notes_of(question, parse_restrictions(allow=("lent",), trainer="megatron"))[-1],
    "differ": axes_that_differ(parse_layout("tp2 lent"), parse_layout("tp2")),
    "executor": [one.what for one in check(own, layout)],
    "late": [one.what for one in check(two, parse_layout("tp2 dp2 toy"))],
    "placed": [one.what for one in check(question, parse_layout("tp2 pp2 toy layers=1,11"))],
    "emulated": emulated(),
    "slower": slower,
    "roomy": best(2.0**40),
    "tight": best(least - 2**27),
}))
"""


def test_an_axis_is_one_file_and_its_field(tmp_path: Path) -> None:
    """All but the folder of axes is the real thing; of that, one file is added and one has a field more each."""
    folder = copied("axes", tmp_path)
    (folder / "toy.py").write_text(FILE, encoding="utf-8")
    table = (folder / "layout.py").read_text("utf-8")
    first, last = "from cost_models.axes.words import", "    recompute: "
    assert table.count(first) == table.count(last) == 1
    (folder / "layout.py").write_text(
        table.replace(first, IMPORT + first).replace(last, FIELDS + last), encoding="utf-8"
    )
    (tmp_path / "toy_hook.py").write_text(HOOK, encoding="utf-8")
    told = answer_with(folder, ASKED.replace("TESTS", repr(str(Path(__file__).parents[2] / "executor"))))
    assert told["written"] == told["columns"] == "tp2 pp1 dp2 mbs1 zero0 toy stash=blocks:2/states:1"
    assert told["wrong"] == [
        "`toy=2`: not part of a layout; did you mean `toy`?",
        "`stash`: `rows:1` is not a part like those of `blocks:1/states:1`",
    ]
    assert told["fixed"] == [[1], [2], [1]]
    assert told["ruled"] == [[2, 4], [0]]
    assert told["plain"][:2] == [0, 0]
    assert told["all"] > 3 * told["plain"][2]
    assert told["words"] == ["--fix toy=1", "--fix stash_blocks>=1"]
    assert told["unread"][0] == "--fix toy>=1: `toy` is a switch, not a number"
    assert "`stash` is not part of a layout" in told["unread"][1]
    assert told["problem"] == ["`toy` needs tp2 or more, not tp1"]
    assert told["obstacle"] == ["`toy` needs tp2 or more, not tp1"]
    rounding = 1 - 1e-9
    assert 12 * 8 * 4e-5 * rounding <= told["slower"] <= 2 * 12 * 8 * 4e-5
    for ratio, layout in (told["roomy"], told["tight"]):
        assert abs(ratio - 1) < 1e-9
        assert ("stash" in layout or "toy" in layout) == (layout == told["tight"][1])
    assert told["part"] >= 12 * 8 * 2e-5 * rounding
    assert "toy" in told["text"]
    assert told["says"] == "Buffers are toys."
    (alone, without), (faster, lent) = told["closed"]
    assert "lent" not in without
    assert "lent" in lent
    assert told["bound"]
    assert faster < alone
    assert told["alone"] == "--allow lent opens nothing: nobody lends one GPU"
    assert told["note"] == "--allow lent opens nothing: megatron lends nothing"
    assert told["differ"] == ["lent"]
    assert "the executor has no toys in fp8" in told["executor"]
    assert told["late"] == ["two nodes have no shelf for `toy`"]
    assert told["placed"] == ["toys want two blocks"]
    assert told["emulated"] == 1
