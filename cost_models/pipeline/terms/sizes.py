"""What memory coefficients are put together from: states a parameter, parameters of a rank, activations it keeps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.memory.activations import ActivationBytes, activation_bytes
from cost_models.memory.states import StateBytes, ends_apart, state_bytes
from cost_models.operators.parameters import Parameters, parameters
from cost_models.pipeline.time_pieces import head_parameters
from cost_models.question import Question

Term = dict[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What memory coefficients are put together from."""

    question: Question
    columns: LayoutColumns
    states: StateBytes
    """Of a parameter, as if all were on the device."""
    experts: StateBytes
    """The same of routed experts."""
    ends: StateBytes
    """The same of embedding and head."""
    counts: Parameters
    kept: ActivationBytes
    head: Array
    """(N,) parameters of the head on its rank."""
    fp8_copies: Array
    """(N,) bytes per parameter of a block."""

    def held_block(self, states: StateBytes, experts: StateBytes) -> Term:
        """What a block with such states occupies from step to step."""
        own, routed = self.counts.block, self.counts.experts
        return _joined(_held(states, own, self.fp8_copies), _held(experts, routed, self.fp8_copies))

    def updated_block(self, states: StateBytes, experts: StateBytes) -> Term:
        """What the optimizer step of such a block holds besides."""
        return _joined(self.updated(states, self.counts.block), self.updated(experts, self.counts.experts))

    def held_end(self, states: StateBytes, module_parameters: Array) -> Term:
        """What embedding or head occupies from step to step; `fully_shard` keeps them gathered."""
        gathered = self.ends.gathered if self.question.stack.fully_shard else 0.0
        return _held(states, module_parameters, gathered)

    def updated(self, states: StateBytes, module_parameters: Array) -> Term:
        """What the optimizer step of a module holds besides."""
        return {
            "gradients": states.late_gradients * module_parameters,
            "working": states.update * module_parameters,
        }


def sizes_of(question: Question, columns: LayoutColumns) -> Sizes:
    """Of N layouts."""
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    states = state_bytes(question, columns)
    return Sizes(
        question=question,
        columns=columns,
        states=states,
        experts=state_bytes(question, columns, experts=True),
        ends=state_bytes(question, columns, ends=True) if ends_apart(question) else states,
        counts=counts,
        kept=activation_bytes(question, columns),
        head=head_parameters(question, columns, counts),
        fp8_copies=_fp8_weight_bytes(question, columns),
    )


def _fp8_weight_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes per parameter of a block of copies for products in fp8 or fp4; ZeRO-3 makes them as it gathers."""
    training = question.training
    copies = question.stack.fp8_weight_bytes * training.operand_bytes if training.narrow else 0.0
    return np.where(columns.zero <= 2, copies, 0.0)


def _joined(one: Term, other: Term) -> Term:
    """Two terms of the same parts, added."""
    return {part: one[part] + other[part] for part in one}


def _held(states: StateBytes, module_parameters: Array, gathered: Array | float) -> Term:
    """What a module's parameters occupy from step to step, with the bytes a parameter that stay gathered."""
    return {
        "weights": (states.weights + gathered) * module_parameters,
        "gradients": states.gradients * module_parameters,
        "optimizer": states.optimizer * module_parameters,
    }
