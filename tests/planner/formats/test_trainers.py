"""Every rule of every trainer refuses a layout that every other rule lets pass, and says why in its words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import MODEL, small_question
from tables import rows

import meshwright as mw
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.files.catalog import load_stack
from cost_models.question import Question
from meshwright.verbs.export import export
from planner.formats.trainers import TRAINERS, refusals, require_own_stack, rows_for, trainer_named
from planner.rules.legality import check
from planner.space.restrictions import parse_restrictions
from planner.space.space import enumerate_layouts

EXPERTS = MODEL.model_copy(
    update={"num_experts": 8, "experts_per_token": 2, "moe_ffn_hidden_size": 512, "ffn_hidden_size": 2048}
)


def asked(trainer: str, *, experts: bool = False, tied: bool = False) -> Question:
    """Eight GPUs and the trainer's own stack."""
    question = small_question(8, stack="meshwright")
    model = EXPERTS if experts else MODEL.model_copy(update={"tied_embeddings": tied})
    return replace(question, model=model, stack=load_stack(trainer_named(trainer).stack))


MIXTURE, TIED = {"experts": True}, {"tied": True}
REFUSED = [
    (trainer, text, what, {"experts": MIXTURE, "tied": TIED}.get(model, {}))
    for trainer, text, model, what in rows("""
        megatron | pp2 dp4 schedule=gpipe | - | Megatron runs 1f1b
        megatron | dp8 zero2 | - | Megatron's distributed optimizer shards optimizer states (zero1)
        megatron | pp2 vpp2 dp4 mbs2 | - | Megatron interleaves microbatches in groups of pp2; there are 1
        megatron | tp2 dp4 ep2 | experts | Megatron trains experts with tp2 only with sequence
        megatron | pp2 cp2 dp2 order=tp-cp-pp-dp | - | Megatron cannot seat `cp2` in `order=tp-cp-pp-dp`
        megatron | pp2 dp4 ep2 order=tp-cp-pp-dp | experts | Megatron wants dp4 copies of an expert, not 2
        megatron | dp8 ep4 zero1 shard2 | experts | `shard2` makes 4 instances of the distributed optimizer
        megatron | pp2 dp4 recompute=full,none | - | Megatron recomputes the same on every stage, not full
        megatron | pp2 dp4 recompute=full:1/selective | - | Megatron has one policy for the blocks of a
        torchtitan | dp8 zero1 | - | torchtitan shards weights, gradients and optimizer states together
        torchtitan | cp2 dp4 | - | torchtitan shards weights over the ranks of `cp2`
        torchtitan | cp4 dp2 zero3 shard2 | - | `shard2` is no multiple of cp4
        torchtitan | pp2 dp4 zero3 | tied | torchtitan cannot tie the embeddings of `small` across
        torchtitan | tp2 dp4 ep2 zero3 | experts | torchtitan keeps experts whole
        torchtitan | tp2 dp4 etp1 zero3 | experts | without `ep` torchtitan splits experts over tp2
        torchtitan | dp8 ep4 zero3 shard2 | experts | `ep4` takes ranks from one shard group
        torchtitan | pp2 dp4 zero3 recompute=full:1 | - | torchtitan has one policy for the blocks of a
        torchtitan | pp2 dp4 zero3 recompute=full,none | - | torchtitan recomputes the same
        deepspeed | pp2 vpp2 dp4 | - | DeepSpeed's pipelines run 1f1b with one chunk a rank
        deepspeed | pp2 dp4 zero2 | - | DeepSpeed's pipelines go with zero0 and zero1, not with `zero2`
        deepspeed | tp2 dp4 sp | - | DeepSpeed's tensor parallelism keeps sequences whole
        deepspeed | dp8 zero3 shard2 | - | DeepSpeed shards over all 8 ranks with the same weights, not over 2
        deepspeed | cp2 dp4 zero3 | experts | DeepSpeed's experts go under zero3 only without context
        deepspeed | dp8 offload=states | - | DeepSpeed keeps on hosts all states (from zero1
        deepspeed | dp8 zero2 offload=streamed | - | a share of them (zero3) or all weights too
        deepspeed | dp8 zero3 offload=streamed:1 | - | DeepSpeed keeps on hosts
        deepspeed | dp8 zero2 offload=states:1 | - | a share of them (zero3)
        deepspeed | pp2 dp4 recompute=full,none | - | DeepSpeed recomputes the same on every stage
        FSDP2 | pp2 dp4 | - | has no pipelines (`pp2`)
        FSDP2 | dp8 zero1 | - | shards gradients with optimizer states, not as `zero1`
        FSDP2 | tp2 dp4 | - | shards weights over the replicas of `tp2 cp1`
        FSDP2 | cp4 dp2 zero3 shard2 | - | not over `shard2` of cp4
        FSDP2 | tp2 dp4 ep2 zero3 | experts | holds experts as the rest
        FSDP2 | tp2 dp4 zero3 sp | - | keeps the sequences of tensor ranks whole
        FSDP2 | dp8 zero3 recompute=selective | - | has no `recompute=selective`
        FSDP2 | dp8 zero3 offload=streamed:1 | - | offloads the weights of all blocks with their states
    """)
]
REFUSED += [("nemo", *case) for trainer, *case in REFUSED if trainer == "megatron"]
FSDP2 = [case for trainer, *case in REFUSED if trainer == "FSDP2"]
REFUSED = [case for case in REFUSED if case[0] != "FSDP2"]
REFUSED += [(trainer, *case) for trainer in ("accelerate", "axolotl") for case in FSDP2]
REFUSED += [("deepspeed", *FSDP2[-2]), ("torchtitan", *FSDP2[-1])]


@pytest.mark.parametrize(("trainer", "text", "what", "model"), REFUSED)
def test_a_rule_refuses_in_its_words(trainer: str, text: str, what: str, model: dict[str, bool]) -> None:
    (words,) = refusals(trainer, asked(trainer, **model), parse_layout(text))
    assert (what.removeprefix("Megatron") if trainer == "nemo" else what) in words.what


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_rule_is_shown_to_refuse_something(trainer: str) -> None:
    cases = [(text, model) for name, text, _, model in REFUSED if name == trainer]
    for rule in trainer_named(trainer).rules:
        broken = [
            text
            for text, model in cases
            if rule.broken(asked(trainer, **model), LayoutColumns.of([parse_layout(text)]))[0]
        ]
        assert broken, rule.name


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("experts", [False, True])
def test_the_search_keeps_to_the_rules(trainer: str, experts: bool) -> None:
    question = asked(trainer, experts=experts)
    words = ["ep=1,2", "etp=1,2", "cp=1,2", "order=tp-cp-dp-pp,tp-cp-pp-dp"] if experts else ["cp=1,2"]
    free = enumerate_layouts(question, parse_restrictions(words))
    held = enumerate_layouts(question, parse_restrictions(words, trainer=trainer))
    allowed = rows_for(trainer, question, free)
    assert 0 < len(held) < len(free)
    assert {str(held.layout(row)) for row in range(len(held))} == {
        str(free.layout(row)) for row in np.flatnonzero(allowed)
    }
    for row in range(len(held)):
        assert not refusals(trainer, question, held.layout(row))
        assert not check(question, held.layout(row))


def test_megatron_recomputes_some_blocks_of_every_stage_in_full() -> None:
    """As many of each, or all of a stage that has fewer."""
    for stages in ("recompute=full:1", "layers=1,3 recompute=full,full:2", "layers=1,3 recompute=none,none"):
        assert not refusals("megatron", asked("megatron"), parse_layout(f"pp2 dp4 {stages}"))
    for stages in ("recompute=full:1,full:2", "recompute=full,full:1", "recompute=none,full:1"):
        assert refusals("megatron", asked("megatron"), parse_layout(f"pp2 dp4 layers=2,2 {stages}"))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_its_other_stacks_have_layouts_that_it_starts(trainer: str) -> None:
    """Each goes with the trainer, and together with its rules leaves something to search."""
    for name in trainer_named(trainer).other_stacks:
        stack = load_stack(name)
        require_own_stack(trainer, stack)
        question = replace(asked(trainer), stack=stack)
        assert len(enumerate_layouts(question, parse_restrictions(["cp=1"], trainer=trainer))), name


@pytest.mark.parametrize("trainer", ["deepspeed", "accelerate", "axolotl"])
def test_what_is_planned_for_a_trainer_with_offload_is_exported(trainer: str) -> None:
    """On one GPU, which shards nothing: a trainer's rules leave out what its file cannot say of offloading."""
    asked = mw.TrainingSpec(global_batch=1, sequence_length=2048)
    fixed = ["tp=1", "mbs=1", "recompute=full"]
    planned = mw.plan("qwen3-14b", "gh200-quad", asked, gpus=1, trainer=trainer, allow=["offload"], fix=fixed)
    assert any(planned.plan.layout.offload)  # type: ignore[attr-defined]
    assert export(planned.plan, trainer).text
