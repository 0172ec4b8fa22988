"""What a software stack, and our own executor, cannot run though the cost model prices it: named rules.

The executor is the stacks of `OWN_STACKS`; what their file does not say is in `RUNNABLE`. It refuses what breaks one of
these rules, and nothing that breaks one is planned for it (`require_runnable`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.axes.axis import loaded
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import AXES, Layout
from cost_models.axes.rule import Rule, Words, in_order, refuses, rule_when
from cost_models.defaults import OWN_COMPILED, OWN_STACK, OWN_STACKS
from cost_models.errors import InputError, Problem, either
from cost_models.files.catalog import load_stack
from cost_models.operators.block import block_operators
from cost_models.operators.tuning import matrix_names, target_names
from cost_models.question import MixedQuestion, Question
from cost_models.schedules import SPLIT_BACKWARD, is_scheduled
from cost_models.specs.training import TrainingSpec
from planner.rules.searched import searched

IN_16_BITS = "plan with --precision bf16"
"""The hint where a plan's precision cannot be had."""
_PRECISIONS = ("fp32", "bf16", "fp8")
_OPTIMIZERS = ("adamw", "lamb", "sgd")
_WHOLE = 16
"""Products in fp8 take sides of whole sixteens: 16 bytes at one an element."""


@rule_when(
    "a precision the executor has", lambda q, x: (x.tp > 0) & (q.training.precision not in _PRECISIONS)
)
def _precision(question: Question, layout: Layout) -> Words:
    what = f"the executor trains in fp32, bf16 or fp8, not in {question.training.precision}"
    why = ", whose gradients vanish without loss scaling" if question.training.precision == "fp16" else ""
    return Words(what + why, IN_16_BITS)


def _adapts_others(question: Question) -> bool:
    """Whether adapters lie beside other matrices than those of attention and dense MLPs, or in such a model."""
    model, tuning = question.model, question.training.tuning
    if tuning is None:
        return False
    of_states = {"in_proj", "out_proj"}.intersection(target_names(tuning), matrix_names(model))
    fp8 = question.training.precision == "fp8"
    return any((fp8, model.has_experts, model.latent_attention, model.tower, of_states))


def _narrow_states(training: TrainingSpec) -> bool:
    others = (training.moment_dtype, training.gradient_dtype)
    return training.state_dtype != "fp32" or any(one not in (None, "fp32") for one in others)


@rule_when("experts in fp8", lambda q, x: _fp8(q, x) & q.model.has_experts)
def _fp8_experts(question: Question, layout: Layout) -> Words:
    return Words("the executor's experts do not multiply in fp8", IN_16_BITS)


@rule_when(
    "products in fp8 have whole sides",
    lambda q, x: _fp8(q, x) & np.any([side % _WHOLE != 0 for side in _sides(q, x)], axis=0),
)
def _fp8_sides(question: Question, layout: Layout) -> Words:
    columns = LayoutColumns.of([layout])
    odd = {float(side[0]): None for side in _sides(question, columns) if side[0] % _WHOLE}
    which = ", ".join(f"{side:g}" for side in odd)
    degrees = f"tp{layout.tp} cp{layout.cp}" if layout.cp > 1 else f"tp{layout.tp}"
    what = f"products in fp8 take sides of whole sixteens, and with {degrees} some are {which}"
    return Words(what, f"choose other degrees, or {IN_16_BITS}")


def _sides(question: Question, x: LayoutColumns) -> list[Array]:
    """(N,) each: rows and columns of what one tensor rank multiplies in a dense block."""
    whole = np.ones(len(x))
    gemms = [one.gemm for one in block_operators(question.model) if one.gemm is not None]
    dense = [gemm for gemm in gemms if not (gemm.routed or gemm.router)]
    tokens = question.training.sequence_length / x.cp
    if any(gemm.split == "whole" for gemm in dense):  # latents, of a rank's part of the tokens
        tokens = tokens / np.where(x.sp == 1, x.tp, 1.0)
    inputs = [gemm.inputs / (x.tp if gemm.split == "rows" else whole) for gemm in dense]
    outputs = [
        width / (x.tp if gemm.split == "columns" else whole) for gemm in dense for width in gemm.outputs
    ]
    return [*inputs, *outputs, tokens]


def _fp8(question: Question, x: LayoutColumns) -> Bools:
    return np.full(len(x), question.training.precision == "fp8")


@rule_when("the model is what it trains", lambda q, x: (x.tp > 0) & bool(q.model.untrained))
def _another_model(question: Question, layout: Layout) -> Words:
    model = question.model
    what = f"the executor's blocks have no {either(list(model.untrained))}: it would train another model than"
    rest = "a YAML file of the model without `left_out` (and `attention_sinks`) trains the rest of it"
    return Words(
        f"{what} `{model.name}`",
        "" if model.recurrence or model.stacks or model.tower or model.diffusion else rest,
    )


@rule_when(
    "learned positions reach the sequence",
    lambda q, x: (
        (x.tp > 0)
        & (q.model.positions == "learned")
        & (q.training.sequence_length > q.model.longest_sequence)
    ),
)
def _positions(question: Question, layout: Layout) -> Words:
    model, length = question.model, question.training.sequence_length
    what = (
        f"`{model.name}` has {model.longest_sequence:,} learned positions; sequences have {length:,} tokens"
    )
    needed = length + model.max_positions - model.longest_sequence
    return Words(what, f"shorten the sequence, or write `max_positions: {needed}` in a model file of yours")


def _stages_in_pools(question: Question, x: LayoutColumns) -> Bools:
    """(N,): layouts of a cluster of several pools that have not whole replicas in each."""
    if not isinstance(question, MixedQuestion):
        return np.zeros(len(x), dtype=np.bool_)
    told = [axis.trains_in_pools(question, x) for axis in searched().values() if axis.trains_in_pools]
    trained: Bools = np.any([np.zeros(len(x), dtype=np.bool_), *told], axis=0)
    return ~trained


@rule_when(
    "tp divides the tokens it routes",
    lambda q, x: (
        q.model.has_experts
        & (x.sp == 0)
        & (np.fmod(q.training.sequence_length, x.cp.astype(np.float64) * x.tp) != 0)
    ),
)
def _routed_parts(question: Question, layout: Layout) -> Words:
    length = question.training.sequence_length
    what = f"the executor has each of tp{layout.tp} ranks route its part of a sequence"
    over = f"cp{layout.cp} x tp{layout.tp}" if layout.cp > 1 else f"tp{layout.tp}"
    return Words(f"{what}; {over} does not divide {length} tokens")


@rule_when(
    "split experts and latents follow one another",
    lambda q, x: (
        (x.tp > 1) & q.model.parallel_block & (q.model.has_experts or q.model.latent_attention is not None)
    ),
)
def _one_after_the_other(question: Question, layout: Layout) -> Words:
    which = "experts" if question.model.has_experts else "latent attention"
    what = f"the executor cannot split {which} over tp{layout.tp} in blocks that run attention and MLP side by side"
    return Words(what, "use tp1")


RUNNABLE: tuple[Rule, ...] = (
    _another_model,
    _positions,
    refuses(
        "one kind of GPU",
        _stages_in_pools,
        "the executor trains on one kind of GPU, and `{question.cluster.name}` has several pools",
        "whole replicas in each run: plan with `--allow replicas`",
    ),
    _precision,
    refuses(
        "states in fp32",
        lambda q, x: (x.tp > 0) & _narrow_states(q.training),
        "the executor keeps gradients, moments and master weights in fp32, and the plan does not",
    ),
    refuses(
        "adapters of dense blocks",
        lambda q, x: (x.tp > 0) & _adapts_others(q),
        "the executor has adapters for attention and dense MLPs in fp32 and bf16, without latent attention or a tower",
        "name matrices with --targets q,k,v,o,gate,up,down",
    ),
    refuses(
        "adapters have whole backward passes",
        lambda q, x: (
            (q.training.tuning is not None)
            & (is_scheduled(x, SPLIT_BACKWARD) | (x.overlap_tp == 1) | (x.overlap_dp == 1))
        ),
        "the executor trains adapters neither under a schedule that splits backward passes nor with `overlap`",
    ),
    refuses(
        "tensor ranks drop the same of an adapter's input",
        lambda q, x: (x.tp > 1) & (q.training.tuning is not None and q.training.tuning.dropout > 0),
        "the executor drops no inputs of adapters that are split over tp{layout.tp}",
        "leave out `tuning.dropout`, or use tp1",
    ),
    refuses(
        "updates follow the backward pass",
        lambda q, x: (x.tp > 0) & q.training.optimizer_in_backward,
        "the executor updates when all gradients are there, and the plan in the backward pass",
        "plan without --optimizer-in-backward",
    ),
    refuses(
        "one model is trained",
        lambda q, x: (x.tp > 0) & (q.training.reference is not None or q.training.reward),
        "the executor trains to predict the next token, and the plan on pairs (dpo, reward)",
    ),
    refuses(
        "frozen parts have whole backward passes",
        lambda q, x: bool(q.training.freeze) & is_scheduled(x, SPLIT_BACKWARD),
        "the executor freezes nothing under `schedule={layout.schedule}`, which splits backward passes",
    ),
    refuses(
        "sequences are whole",
        lambda q, x: (x.tp > 0) & (q.training.lengths is not None),
        "the executor trains on whole sequences, and the plan on documents of unlike length",
        "plan without --lengths",
    ),
    refuses(
        "the loss counts every token",
        lambda q, x: (x.tp > 0) & (q.training.answers is not None),
        "the executor's loss counts every token, and the plan's those of answers",
        "plan without --answers",
    ),
    refuses(
        "an optimizer the executor has",
        lambda q, x: (x.tp > 0) & (q.training.optimizer not in _OPTIMIZERS),
        "the executor has adamw, lamb and sgd, not {question.training.optimizer}",
        "plan with --optimizer adamw",
    ),
    *(rule for axis in AXES.values() for rule in loaded(axis.executor_rules)),
    _fp8_experts,
    refuses(
        "fp8 runs backward passes whole",
        lambda q, x: _fp8(q, x) & is_scheduled(x, SPLIT_BACKWARD),
        "each half of a backward pass that `schedule={layout.schedule}` splits would run all products in fp8",
        "use another schedule",
    ),
    _fp8_sides,
    _routed_parts,
    refuses(
        "norms over all heads have all heads",
        lambda q, x: (x.tp > 1) & (q.model.qk_norm_over == "all"),
        "the executor cannot split a norm over all heads (`qk_norm_over: all`) over tp{layout.tp}",
        "use tp1",
    ),
    _one_after_the_other,
)


def _of_the_executor(rule: Rule) -> Rule:
    """The rule for those who plan for the executor; other stacks may do it."""
    return replace(rule, broken=lambda q, x: (q.stack.name in OWN_STACKS) & rule.broken(q, x))


_FIRST_TOLD = (
    "the stack has this ZeRO stage",
    "the stack has this schedule",
    "a split backward pass finds its weights",
    "the stack has context parallelism",
    "the stack has this way of context parallelism",
    "the stack has this order",
    "the stack splits experts otherwise",
    "the stack shards in groups",
)
"""The order in which the rules of the axes are told; others, of new axes, follow."""
STACK_RULES: tuple[Rule, ...] = (
    *in_order(_FIRST_TOLD, (rule for axis in AXES.values() for rule in axis.stack_rules)),
    *(_of_the_executor(rule) for rule in RUNNABLE),
)


def question_objections(question: Question) -> list[Words]:
    """What the executor cannot do of a question planned for it, whatever the layout."""
    if question.stack.name not in OWN_STACKS:
        return []
    smallest = Layout()
    columns = LayoutColumns.of([smallest])
    return [rule.sentence(question, smallest) for rule in RUNNABLE if rule.broken(question, columns)[0]]


def require_runnable(question: Question, layout: Layout) -> None:
    """Nothing for a layout that the executor can run, whatever stack it was planned for.

    Raises:
        InputError: with every reason why it cannot, and the hint of the first.
    """
    own = load_stack(OWN_COMPILED if question.stack.compiled else OWN_STACK)
    ours = replace(question, stack=own)
    columns = LayoutColumns.of([layout])
    found = [rule.sentence(ours, layout) for rule in STACK_RULES if rule.broken(ours, columns)[0]]
    if len(found) == 1:
        raise InputError(found[0].what, hint=found[0].hint)
    if found:
        raise InputError(
            f"the executor cannot run `{layout}`: {len(found)} reasons",
            problems=[Problem("", words.what) for words in found],
            hint=found[0].hint,
        )
