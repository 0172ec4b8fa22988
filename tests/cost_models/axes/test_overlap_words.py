"""`overlap=tp,pp,dp`: how it is read, written and kept in columns, and what rules say of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import axis_value, parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from planner.rules.legality import check
from planner.rules.stack import require_runnable


@pytest.mark.parametrize(
    ("words", "wanted", "written"),
    [
        ("dp2", None, "tp1 pp1 dp2 mbs1 zero0"),
        ("dp2 overlap=dp", ("dp",), "tp1 pp1 dp2 mbs1 zero0 overlap=dp"),
        ("tp2 pp2 dp2 sp overlap=dp,tp", ("tp", "dp"), "tp2 pp2 dp2 mbs1 zero0 sp overlap=tp,dp"),
        ("dp2 overlap=none", (), "tp1 pp1 dp2 mbs1 zero0 overlap=none"),
        ("cp2 overlap=dp,pp", ("dp",), "tp1 pp1 cp2 dp1 mbs1 zero0 overlap=dp"),  # ranks of cp are replicas
        ("overlap=tp,pp,dp", None, "tp1 pp1 dp1 mbs1 zero0"),  # nothing is sent
    ],
)
def test_words_are_read_written_and_kept_in_columns(
    words: str, wanted: tuple[str, ...] | None, written: str
) -> None:
    layout = parse_layout(words)
    assert layout.overlap == wanted
    assert str(layout) == written
    assert LayoutColumns.of([layout]).layout(0) == layout


def test_its_value_is_told_as_it_is_written() -> None:
    values = [
        axis_value("overlap", parse_layout(f"pp2 dp2 {words}"))
        for words in ("", "overlap=dp,pp", "overlap=none")
    ]
    assert values == ["usual", "pp,dp", "none"]


def test_words_that_are_none_are_told() -> None:
    with pytest.raises(InputError) as error:
        parse_layout("dp2 overlap=dp,cp")
    assert "`cp` is none of tp, pp, dp, none" in str(error.value.problems[0])


def asked(stack: str) -> Question:
    training = TrainingSpec(global_batch=8, sequence_length=1024, recompute=("none",))
    cluster = resolve_cluster("dgx-a100-80gb", 4)
    return complete_question(catalog.load_model("gpt2-small"), cluster, training, stack=stack)


@pytest.mark.parametrize(
    ("stack", "words", "said"),
    [
        ("meshwright", "dp4 zero2 overlap=dp", "has `overlap=dp` under `zero0` or `zero1` only"),
        ("meshwright", "pp2 vpp2 dp2 overlap=dp", "`schedule=interleaved` off a table"),
        ("meshwright", "tp2 sp dp2 overlap=tp", "cannot run tp communication behind compute"),
        ("meshwright", "dp4 zero1 overlap=dp offload=states", "of blocks in host memory"),
        ("megatron-2021", "dp4 overlap=dp", "cannot run dp communication behind compute"),
        ("megatron-core", "tp4 overlap=tp", "without `sp` there are none"),
    ],
)
def test_rules_name_what_a_stack_has_not(stack: str, words: str, said: str) -> None:
    (problem,) = check(asked(stack), parse_layout(words))
    assert said in problem.what, problem.hint


def test_stacks_have_what_they_always_overlap_and_what_their_file_says() -> None:
    assert not check(asked("meshwright"), parse_layout("pp2 dp2 zero1 overlap=pp,dp"))
    assert not check(asked("megatron-core"), parse_layout("pp2 dp2 zero1 overlap=dp"))
    bare = asked("megatron-2021")
    asking = replace(bare, stack=bare.stack.model_copy(update={"overlaps": ("dp",)}))
    assert not check(asking, parse_layout("dp4 overlap=dp"))


def test_tensors_overlap_on_gpus_alone() -> None:
    on_gpus = asked("meshwright-compiled")
    layout = parse_layout("tp4 sp overlap=tp")
    assert not check(on_gpus, layout)
    (problem,) = check(replace(on_gpus, cluster=resolve_cluster("local", 4)), layout)
    assert "symmetric memory of GPUs" in problem.what
    with pytest.raises(InputError, match="cannot run tp communication"):
        require_runnable(asked("megatron-core"), layout)  # whose plans run on the uncompiled executor
