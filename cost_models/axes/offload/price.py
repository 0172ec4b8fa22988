"""What blocks leave on the device wherever their states live: coefficients of memory, part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload import offloads
from cost_models.axes.offload.residency import RESIDENT, Affine, held, over_residencies, rest_is
from cost_models.axes.rule import Bools
from cost_models.memory.device import is_own_host
from cost_models.memory.states import StateBytes, state_bytes
from cost_models.operators.parameters import parameters
from cost_models.question import Question

Array = npt.NDArray[np.float64]
Term = dict[str, Array]
TermOf = Callable[[StateBytes, StateBytes], Term]
"""From the states of a block's parameters, and of its routed experts, to a term."""

PARKED_AT_ONCE = 2
"""Blocks whose parked states are on the device during the update: one is updated while the next arrives."""


class OnDevice:
    """Some layouts' blocks, by where their states live."""

    def __init__(self, question: Question, columns: LayoutColumns) -> None:
        self._question, self._columns = question, columns
        self._any = bool(offloads(columns).any())
        self._known: dict[str, tuple[StateBytes, StateBytes]] = {}

    @property
    def activations(self) -> Bools:
        """(N,): whether blocks keep nothing for the backward pass on the device."""
        return rest_is(self._columns, "activations")

    def states(self, residency: str = RESIDENT) -> tuple[StateBytes, StateBytes]:
        """Bytes per parameter of a block with a residency, and of its routed experts."""
        if residency not in self._known:
            dense, routed = (
                state_bytes(self._question, self._columns, experts=experts, residency=residency)
                for experts in (False, True)
            )
            self._known[residency] = (dense, routed)
        return self._known[residency]

    def summed(self, term_of: TermOf) -> tuple[Term, Term]:
        """A term of every block, and what a rank has of it besides (`axes.offload.residency`)."""
        resident = term_of(*self.states())
        if not self._any:
            return resident, {}

        def of(part: str) -> Affine:
            return over_residencies(self._columns, lambda where: term_of(*self.states(where))[part])

        each = {part: of(part) for part in resident}
        return {part: one.layer for part, one in each.items()}, {part: one.rank for part, one in each.items()}

    @cached_property
    def of_ends(self) -> StateBytes:
        """Bytes per parameter of embedding and head: as the blocks that no count names, where the stack says so."""
        resident = self.states()[0]
        if not (self._any and self._question.stack.offloads_ends):
            return resident

        def of(name: str) -> Array:
            whole = over_residencies(self._columns, lambda where: getattr(self.states(where)[0], name))
            return whole.layer

        return StateBytes(**{field.name: of(field.name) for field in fields(StateBytes)})

    def ring(self, besides: Term) -> Term:
        """Adds the buffers of streamed weights, and of gradients that have as many, to what a rank has besides."""
        if not self._any:
            return {}
        buffers = np.minimum(self._columns.ring, self._blocks("streamed"))
        gradients = np.where(self._gradients_apart, 0.0, buffers)
        return {
            "weights": besides["weights"] + buffers * self._of_block("weights"),
            "gradients": besides["gradients"] + gradients * self._of_block("gradients"),
        }

    @property
    def made_gradients(self) -> Array:
        """(N,) bytes of gradients of streamed blocks that are on the device only while blocks run backward.

        A CPU, which copies them itself, has let go of one before it makes the next.
        """
        if not self._any:
            return np.zeros(len(self._columns))
        most = self._question.stack.streamed_gradient_buffers or 0
        at_once = np.minimum(1 if is_own_host(self._question.cluster) else most, self._blocks("streamed"))
        made: Array = np.where(self._gradients_apart, at_once * self._of_block("gradients"), 0.0)
        return made

    @property
    def _gradients_apart(self) -> Bools:
        """(N,): whether gradients of streamed blocks have buffers of their own."""
        apart: Bools = (self._columns.zero < 2) & (self._question.stack.streamed_gradient_buffers is not None)
        return apart

    def update_buffers(self) -> Term:
        """States of parked blocks that are on the device during the update."""
        if not self._any:
            return {"optimizer": np.zeros(len(self._columns))}
        at_once = np.minimum(PARKED_AT_ONCE, self._blocks("parked"))
        return {"optimizer": at_once * self._of_block("optimizer")}

    def _blocks(self, part: str) -> Array:
        """(N,) blocks of a rank with a residency, spread evenly."""
        return held(self._columns, part, self._question.model.num_layers / self._columns.pp)

    def _of_block(self, name: str) -> Array:
        """(N,) bytes of a resident block: one of the fields of `StateBytes`."""
        x, (dense, routed) = self._columns, self.states()
        counts = parameters(self._question.model, x.tp, ep=x.ep, etp=x.etp)
        own: Array = getattr(dense, name) * counts.block + getattr(routed, name) * counts.experts
        return own
