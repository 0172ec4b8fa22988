"""A schedule is one record: a toy one, put beside the others in a copy of the folder, is planned for."""

from __future__ import annotations

from pathlib import Path

from toy_folder import answer_with, copied

RECORD = """
    PipelineSchedule(  # every chunk runs all microbatches before the next chunk begins (Lamy-Poirier 2023)
        name="breadth-first",
        engine="ScheduleInterleaved1F1B",
        warm_up=lambda pp, vpp, m, rank: m * vpp,
        round_sizes=lambda pp, m: m,
        chunks=(2, None),
        keeps_all_logits=True,
    ),
"""
ASKED = """
import json
import numpy as np
from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.schedules.actions import peak_moments
from cost_models.schedules.registry import build, engine_refusal, schedule_named
from cost_models.specs.training import TrainingSpec
from planner.search.search import search
from planner.space.restrictions import parse_restrictions

stack = catalog.load_stack("meshwright")
stack = stack.model_copy(update={"schedules": (*stack.schedules, "breadth-first")})
training = TrainingSpec(global_batch=16, sequence_length=1024)
cluster = resolve_cluster("dgx-a100-80gb", 4)
question = complete_question(catalog.load_model("gpt2-small"), cluster, training, stack=stack)
toy = search(question, top=1, restrictions=parse_restrictions(("schedule=breadth-first", "pp=2", "vpp=3"), ()))
table = build("breadth-first", 2, 3, 8)
live = [schedule_named("breadth-first").live_of_chunk(2, 3, 8, rank, np.arange(3)).tolist() for rank in (0, 1)]
print(json.dumps({
    "refused": engine_refusal("breadth-first", 2, 1, 8),
    "actions": "".join(action.kind for action in table.actions(0)),
    "live": live,
    "profiles": [profile.tolist() for profile in peak_moments(table)[0]],
    "written": str(parse_layout("tp1 pp2 vpp3 dp2 mbs1 zero0 schedule=breadth-first")),
    "planned": str(toy.best.layout.schedule),
    "seconds": toy.best.step_seconds,
    "gap": toy.certificate.gap,
}))
"""


def test_a_toy_schedule_is_one_record(tmp_path: Path) -> None:
    """All but the folder of schedules is the real thing; of that, one file has one record more."""
    folder = copied("schedules", tmp_path)
    registry = (folder / "registry.py").read_text("utf-8")
    end = ")\n\nREGISTRY: "
    assert registry.count(end) == 1
    (folder / "registry.py").write_text(registry.replace(end, RECORD.lstrip("\n") + end), encoding="utf-8")
    told = answer_with(tmp_path, ASKED)
    assert told["refused"] == "breadth-first needs at least two chunks per pipeline rank: vpp2 or more"
    assert told["actions"] == "F" * 24 + "B" * 24
    assert told["live"] == [[8, 8, 8]] * 2
    assert told["profiles"] == [[[8, 8, 8]]] * 2
    assert told["written"].endswith("schedule=breadth-first")
    assert told["planned"] == "breadth-first"
    assert told["seconds"] > 0
    assert told["gap"] == 0
