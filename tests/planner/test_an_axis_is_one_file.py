"""An axis is one file and its field in the table: toy ones are written, restricted, searched, ruled and priced."""

from __future__ import annotations

from pathlib import Path

from toy_folder import answer_with, copied

FILE = '''
"""A toy: a switch that saves memory and costs time, and a number of each of two parts that do."""

import numpy as np

from cost_models.axes.axis import Axis, Price, more
from cost_models.axes.rule import Rule, Words
from cost_models.axes.words import Counts, Switch

TOY = Axis(
    word=Switch(),
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
    price=Price(
        seconds=lambda p, terms: more(terms, {"layer_forward": {"compute": 2e-5 * p.columns.toy}}),
        bytes=lambda p, terms: more(terms, {"static": {"buffers": -float(2**28) * p.columns.toy}}),
    ),
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
'''
IMPORT = "from cost_models.axes.toy import STASH, TOY\n"
FIELDS = """    toy: Annotated[bool, TOY] = False
    stash: Annotated[tuple[int, int], STASH] = (0, 0)
"""
ASKED = """
import json
from dataclasses import replace
import numpy as np
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.estimating import estimate
from cost_models.specs.training import TrainingSpec
from planner.rules.legality import check
from planner.search.search import search
from planner.space.layouts import enumerate_layouts
from planner.space.obstacles import obstacles
from planner.space.restriction_words import parse_restrictions

def refused(make):
    try:
        make()
    except InputError as error:
        return [str(problem) for problem in error.problems]

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
    told = answer_with(folder, ASKED)
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
