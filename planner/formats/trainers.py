"""Trainers for which a plan can be made (`--for`): the rules of their argument checks, and their software
stacks.

The rules are what the argument checks, the mesh, the sharding and the engines of each trainer refuse. Sources:
torchtitan, August 2026: torchtitan/distributed/parallel_dims.py, fsdp.py, pipeline_parallel.py,
activation_checkpoint.py, torchtitan/models/common/decoder.py; DeepSpeed 0.19.8: deepspeed/runtime/engine.py,
runtime/pipe/engine.py, runtime/pipe/module.py, runtime/pipe/schedule.py, runtime/zero/config.py; accelerate 1.15.0:
parallelism_config.py, utils/dataclasses.py, utils/fsdp_utils.py; axolotl 0.18.0: src/axolotl/utils/schemas/config.py,
fsdp.py, validation.py; NVIDIA/Megatron-LM, August 2026: megatron/training/arguments.py,
megatron/core/parallel_state.py, transformer/transformer_config.py, transformer/moe/moe_layer.py,
pipeline_parallel/schedules.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.offload.residency import offloads
from cost_models.axes.rule import Broken, Rule, Sentence, Words, objections, unbroken
from cost_models.axes.stages import number_in_full, policies_in
from cost_models.axes.words import EVERY
from cost_models.errors import InputError, UnknownNameError
from cost_models.files import catalog
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES, Recompute
from cost_models.specs.stack import StackSpec


@dataclass(frozen=True, slots=True)
class Trainer:
    """Rules and recompute policies that determine which layouts a training program can run."""

    name: str
    """Name of the trainer as people write it."""
    stack: str
    """Catalogue name of the trainer's default software stack."""
    rules: tuple[Rule, ...]
    """Rules of the trainer, beyond the rules of all trainers (`planner.rules.legality`)."""
    other_stacks: tuple[str, ...] = ()
    """Catalogue names of further stacks under the same rules: other releases, and forks with the same arguments."""
    policies: tuple[Recompute, ...] = RECOMPUTE_POLICIES
    """Recompute policies of the trainer."""
    counts_full: bool = False
    """Whether the trainer can fully recompute N blocks of every stage (`full:N`)."""


FSDP2, FUSED_LOSS = "fsdp", "fsdp-fused-loss"
"""Software stack of accelerate and axolotl, and the same with a loss that never stores all logits."""


def _holds_copies(x: LayoutColumns) -> Bools:
    """Whether each layout has several replicas that all store all weights, (N,)."""
    return np.asarray((x.zero == 0) & (x.replicas > 1))


class Breach(NamedTuple):
    """Condition that breaks a rule, with a hint for the user."""

    broken: Broken
    hint: str = ""
    sentence: Sentence | None = None
    """Function that returns sentence and hint, where the sentence is no template."""


def _rules(table: Mapping[str, Breach]) -> tuple[Rule, ...]:
    """Create a rule from each entry of a table, which gives the condition and hint (`Breach`) by the sentence
    that refuses a layout."""
    return tuple(Rule(key, broken, words or key, hint) for key, (broken, hint, words) in table.items())


def _streaming_rule(name: str) -> dict[str, Breach]:
    """Rule that a trainer can offload only in one way: it streams weights and states of all blocks from the
    host, and only if they are sharded."""
    return {
        f"{name} offloads the weights of all blocks with their states, where it shards them, nothing else": Breach(
            lambda q, x: (
                offloads(x) & ((x.offload_streamed < EVERY) | (x.offload_activations > 0) | _holds_copies(x))
            ),
            "write `offload=streamed` with zero2 or zero3",
        )
    }


def _fsdp2_trainer(name: str) -> Trainer:
    """FSDP2 trainer of the given name, with the rules that its layouts must obey."""
    table = {
        # there are no pipelines
        f"{name} has no pipelines (`pp{{layout.pp}}`)": Breach(lambda q, x: x.pp > 1, "use pp1"),
        # weights and gradients are sharded with optimizer states, or nothing is
        f"{name} shards gradients with optimizer states, not as `zero1`": Breach(
            lambda q, x: x.zero == 1, "write zero3 (reshard after forward) or zero2 (do not)"
        ),
        # replicas of split weights are sharded
        f"{name} shards weights over the replicas of `tp{{layout.tp}} cp{{layout.cp}}`": Breach(
            lambda q, x: _holds_copies(x) & ((x.tp > 1) | (x.cp > 1)), "write zero3 or zero2"
        ),
        # shard groups hold whole context groups
        f"{name} shards over several whole context groups, not over `shard{{layout.shard}}` of cp{{layout.cp}}": Breach(
            lambda q, x: (x.zero > 0) & ((x.shard % x.cp > 0) | ((x.shard == x.cp) & (x.shard < x.replicas)))
        ),
        # experts are split as the rest
        f"{name} holds experts as the rest, without `ep` or `etp`": Breach(
            lambda q, x: q.model.has_experts & ((x.ep > 1) | (x.etp != x.tp)), "use ep1 and leave out `etp`"
        ),
        # tensor ranks have whole sequences
        f"{name} keeps the sequences of tensor ranks whole": Breach(
            lambda q, x: x.sp == 1, "leave out `sp`; `cp` splits them"
        ),
    } | _streaming_rule(name)
    return Trainer(name, FSDP2, _rules(table), (FUSED_LOSS,), ("none", "full"))


ACCELERATE, AXOLOTL = map(_fsdp2_trainer, ("accelerate", "axolotl"))


def _experts_in_shard(question: Question, layout: Layout) -> Words:
    """Sentence and hint for an expert-parallel degree that does not divide the shard group."""
    ranks = layout.shard_group * layout.tp
    message = f"`ep{layout.ep}` takes ranks from one shard group: shard x tp has {ranks:,}"
    return Words(message, "ep must divide it")


_TORCHTITAN = {
    # all states are sharded, or none
    "torchtitan shards weights, gradients and optimizer states together, not as `zero{layout.zero}`": Breach(
        lambda q, x: x.zero == 1, "write zero3 (reshard after forward) or zero2 (do not)"
    ),
    # context ranks shard weights
    "torchtitan shards weights over the ranks of `cp{layout.cp}`": Breach(
        lambda q, x: (x.cp > 1) & (x.zero == 0), "write zero3 or zero2"
    ),
    # shard groups hold whole context groups
    "torchtitan shards over whole context groups: `shard{layout.shard}` is no multiple of cp{layout.cp}": Breach(
        lambda q, x: x.shard % x.cp != 0
    ),
    # tied embeddings lie on one stage
    "torchtitan cannot tie the embeddings of `{model.name}` across a pipeline (`pp{layout.pp}`)": Breach(
        lambda q, x: q.model.tied_embeddings & (x.pp > 1), "use pp1"
    ),
    # shared experts are whole
    "torchtitan keeps experts whole where it shares them: etp1, not etp{layout.expert_tp}": Breach(
        lambda q, x: q.model.has_experts & (x.ep > 1) & (x.etp != 1), "write `etp1`"
    ),
    # experts are split as the rest where they are not shared
    "without `ep` torchtitan splits experts over tp{layout.tp}": Breach(
        lambda q, x: q.model.has_experts & (x.ep == 1) & (x.etp != x.tp), "leave out `etp`"
    ),
    "expert groups lie in one shard group": Breach(
        lambda q, x: q.model.has_experts & (np.fmod(x.shard * x.tp, x.ep) != 0), sentence=_experts_in_shard
    ),
} | _streaming_rule("torchtitan")
TORCHTITAN = Trainer("torchtitan", "torchtitan", _rules(_TORCHTITAN))


def _offloads_of_deepspeed(x: LayoutColumns) -> Bools:
    """Whether DeepSpeed can run the offload of each layout, (N,). A single replica, which shards nothing, may
    use any ZeRO stage."""
    any_share = (x.zero == 3) | (x.replicas == 1)
    states = any_share | ((x.zero >= 1) & (x.offload_states >= EVERY))
    weights = any_share & (x.offload_states == 0)
    return np.asarray(np.where(x.offload_streamed >= EVERY, weights, states & (x.offload_streamed == 0)))


_DEEPSPEED = {
    # pipelines run 1F1B
    "DeepSpeed's pipelines run 1f1b with one chunk a rank, not `schedule={layout.schedule}`": Breach(
        lambda q, x: (x.pp > 1) & ((x.vpp > 1) | (x.schedule != SCHEDULES.index("1f1b"))),
        "leave out `vpp` and `schedule`",
    ),
    # pipelines shard optimizer states at most
    "DeepSpeed's pipelines go with zero0 and zero1, not with `zero{layout.zero}`": Breach(
        lambda q, x: (x.pp > 1) & (x.zero > 1), "write zero1, or use pp1"
    ),
    # tensor ranks have whole sequences
    "DeepSpeed's tensor parallelism keeps sequences whole": Breach(
        lambda q, x: x.sp == 1, "leave out `sp`; `cp` splits them"
    ),
    # ZeRO shards over all ranks with the same weights
    "DeepSpeed shards over all {layout.data_ranks} ranks with the same weights, not over {layout.shard_group}": Breach(
        # shard groups were MiCS's (`mics_shard_size`) until 0.19; they are no more in 0.19.8
        lambda q, x: (x.zero > 0) & (x.shard != x.replicas),
        "leave out `shard`",
    ),
    # experts under ZeRO-3 have whole sequences
    "DeepSpeed's experts go under zero3 only without context parallelism, not with `cp{layout.cp}`": Breach(
        lambda q, x: q.model.has_experts & (x.zero == 3) & (x.cp > 1), "use cp1, or zero2"
    ),
    # hosts keep weights of all blocks and states of a share of them under ZeRO-3 alone
    "DeepSpeed keeps on hosts all states (from zero1 on), a share of them (zero3) or all weights too (zero3)": Breach(
        lambda q, x: (x.offload_activations > 0) | (offloads(x) & ~_offloads_of_deepspeed(x)),
        "write `offload=states` or `offload=streamed`",
    ),
}
_OVER_DEEPSPEED = ("deepspeed-fused-loss", "deepspeed-v0.5", "xtuner", "megatron-deepspeed", "bigscience")
DEEPSPEED = Trainer("DeepSpeed", "deepspeed", _rules(_DEEPSPEED), _OVER_DEEPSPEED, ("none", "full"))


def _interleaved(question: Question, layout: Layout) -> Words:
    """Sentence and hint for microbatches that do not divide into groups of pp."""
    microbatches = layout.microbatches(question.training.global_batch)
    message = f"Megatron interleaves microbatches in groups of pp{layout.pp}; there are {microbatches}"
    return Words(message, "choose dp and mbs so that pp divides them, or leave out `vpp`")


def _experts_and_order(question: Question, layout: Layout) -> Words:
    """Sentence and hint for an order of axes that does not suit context or expert parallelism."""
    message = f"Megatron cannot seat `cp{layout.cp}` in `order={layout.order}`"
    if question.model.has_experts:
        copies = int(LayoutColumns.of([layout]).expert_replicas[0])
        message = f"in `order={layout.order}` Megatron wants dp{layout.dp} copies of an expert, not {copies}"
        return Words(message, "choose ep and etp so that ep x etp = tp x cp, or leave out `order`")
    return Words(message, "use cp1, or leave out `order`")


def _instances(question: Question, layout: Layout) -> Words:
    """Sentence and hint for a number of shard groups that does not divide the number of copies of experts."""
    copies = int(LayoutColumns.of([layout]).expert_replicas[0])
    instances = layout.data_ranks // layout.shard_group
    message = f"`shard{layout.shard}` makes {instances} instances of the distributed optimizer"
    return Words(f"{message}, which do not divide the {copies} ranks that hold the same experts")


_MEGATRON = {
    # 1F1B, or interleaved
    "Megatron runs 1f1b, and interleaved where vpp is above 1, not `schedule={layout.schedule}`": Breach(
        lambda q, x: ~np.isin(x.schedule, [SCHEDULES.index(name) for name in ("1f1b", "interleaved")]),
        "leave out `schedule`",
    ),
    # the distributed optimizer shards optimizer states
    "Megatron's distributed optimizer shards optimizer states (zero1), not `zero{layout.zero}`": Breach(
        lambda q, x: x.zero > 1, "write zero1"
    ),
    "interleaving takes microbatches in groups of pp": Breach(
        lambda q, x: (x.vpp > 1) & (x.microbatches(q.training.global_batch) % x.pp != 0),
        sentence=_interleaved,
    ),
    # experts and tensor parallelism want sequence parallelism
    "Megatron trains experts with tp{layout.tp} only with sequence parallelism": Breach(
        lambda q, x: q.model.has_experts & (x.tp > 1) & (x.sp == 0), "write `sp`"
    ),
    "data outside the pipeline are as many as copies of experts": Breach(
        # a pipeline of several stages that is not the outermost axis of the order
        lambda q, x: (x.pp > 1) & (x.order != 0) & (x.expert_replicas != x.dp),
        sentence=_experts_and_order,
    ),
    "optimizer instances divide the copies of experts": Breach(
        lambda q, x: q.model.has_experts & (x.expert_replicas % np.maximum(1, x.replicas // x.shard) != 0),
        sentence=_instances,
    ),
}
_RELEASES = ("megatron-lm", "megatron-2023", "megatron-2022", "megatron-2021")
_FORKS = ("nemo", "megascale", "megatron-deepspeed", "bigscience", "stronghold")
MEGATRON = Trainer("Megatron", "megatron-core", _rules(_MEGATRON), _RELEASES + _FORKS, counts_full=True)
"""Megatron-LM. `--recompute-method block --recompute-num-layers N` recomputes N blocks of every stage in full."""

NEMO = replace(MEGATRON, name="NeMo", stack="nemo", other_stacks=("megatron-core", "megatron-lm"))
"""Megatron Bridge, which runs Megatron Core."""


TRAINERS: dict[str, Trainer] = {"megatron": MEGATRON, "torchtitan": TORCHTITAN, "deepspeed": DEEPSPEED}
TRAINERS |= {"nemo": NEMO, "accelerate": ACCELERATE, "axolotl": AXOLOTL}


def trainer_named(name: str) -> Trainer:
    """Trainer with the given name. Raises UnknownNameError if there is none."""
    if name not in TRAINERS:
        raise UnknownNameError("trainer", name, TRAINERS, hint=f"trainers: {', '.join(TRAINERS)}")
    return TRAINERS[name]


def trainers_of(stack: StackSpec) -> tuple[str, ...]:
    """Names of the trainers that can run a stack: first the stack's own, then compatible ones."""
    first = [name for name, one in TRAINERS.items() if one.stack == stack.name]
    return (*first, *(name for name, one in TRAINERS.items() if stack.name in one.other_stacks))


def require_own_stack(name: str, stack: StackSpec) -> None:
    """Raise InputError if a trainer cannot run a stack; a stack outside the catalogue is accepted, as the
    user wrote it.

    Raises:
        InputError: the stack is another trainer's.
    """
    trainer = trainer_named(name)
    stacks = (trainer.stack, *trainer.other_stacks)
    if stack.name not in stacks and stack.name in catalog.names("stacks"):
        other_stack = f"`--stack {stack.name}`, whose prices are of another trainer"
        hint = f"stacks that go with `--for {name}`: {', '.join(stacks)}"
        raise InputError(f"`--for {name}` does not go with {other_stack}", hint=hint)


def rows_for(name: str, question: Question, columns: LayoutColumns) -> Bools:
    """Whether the trainer accepts each layout, (N,)."""
    return unbroken(trainer_named(name).rules, question, columns)


def refusals(name: str, question: Question, layout: Layout) -> list[Words]:
    """Reasons why the trainer refuses a layout: one for every broken rule, and one for recompute that the
    trainer cannot express."""
    trainer, mix = trainer_named(name), layout.recompute[0]
    refused, policies = objections(trainer.rules, question, layout), set(policies_in(mix))
    if layout.replicas:
        message = f"{trainer.name} gives every replica as many microbatches, and `replicas=` does not"
        refused.append(Words(message, "leave out `replicas`"))
    # recompute is no `Rule`, since those do not see single stages
    counts = trainer.counts_full and layout.layers
    if counts and number_in_full(layout.layers, layout.stage_recompute) is not None:
        return refused
    if len(layout.recompute) > 1:
        message = f"{trainer.name} recomputes the same on every stage, not {', '.join(dict.fromkeys(layout.recompute))}"
        refused.append(Words(message, "write one policy, like `recompute=selective`"))
    elif absent := sorted(policies - set(trainer.policies)):
        hint = f"it has {' and '.join(trainer.policies)}"
        refused.append(Words(f"{trainer.name} has no `recompute={absent[0]}`", hint))
    elif len(policies) > 1 and not (trainer.counts_full and policies == {"full", "none"}):
        hint = "write `recompute=full:N` or one policy" if trainer.counts_full else "write one policy"
        message = f"{trainer.name} has one policy for the blocks of a stage, not `recompute={mix}`"
        refused.append(Words(message, hint))
    return refused
