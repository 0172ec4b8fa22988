"""What offloaded blocks take of the device's memory and of a step, part by part, and least in a box of counts.

A reference model that lies in host memory is priced here too: its blocks come in every forward pass of its own.

memory  what blocks leave on the device wherever their states live, the ring of streamed ones, and what hosts keep
passes  what a block waits for activations that come and go
update  what the device updates of a rank, and what its channels to host memory outlast the passes by
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, reduce
from typing import Any

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import USUAL_RING, Layout
from cost_models.axes.offload import offloads
from cost_models.axes.offload.channels import (
    ChannelSeconds,
    channel_seconds,
    exposed_seconds,
    left_in_sight,
    link_rate,
)
from cost_models.axes.offload.hosts import host_bytes, reference_bytes
from cost_models.axes.offload.residency import (
    RESIDENT,
    Affine,
    held,
    held_on_device,
    over_residencies,
    rest_is,
)
from cost_models.axes.offload.traffic import drive_bytes
from cost_models.axes.recompute import policies_in
from cost_models.memory.activations import activation_bytes
from cost_models.memory.device import is_own_host, usable_drive, usable_host_memory
from cost_models.memory.states import StateBytes, state_bytes
from cost_models.pipeline.sizes import Sizes
from cost_models.pipeline.time_pieces import Pieces, Term, Terms, jitter
from cost_models.pipeline.updates import block_update
from cost_models.question import Question

TermOf = Callable[[StateBytes, StateBytes], Term]
"""From the states of a block's parameters, and of its routed experts, to a term."""

_GRADIENT_BUFFERS = 2
"""Gradients of streamed blocks on the device at a time, while blocks run backward in our executor: one goes down as the
next is made (executor/axes/offload/streaming.py)."""
PARKED_AT_ONCE = 2
"""Blocks whose parked states are on the device during the update: one is updated while the next arrives."""


def offload_bytes(sizes: Sizes, terms: Terms) -> Terms:
    """The coefficients of memory of layouts that offload something."""
    if sizes.question.training.reference == "host":
        buffers = USUAL_RING * reference_bytes(sizes.question, sizes.columns)
        return {"static": terms["static"] | {"weights": buffers}}
    if not offloads(sizes.columns).any():
        return {}
    away = OnDevice(sizes)
    layer_static, rank_static = away.summed(sizes.held_block)
    layer_update, rank_update = away.summed(sizes.updated_block)
    ends, kept = away.of_ends, sizes.kept.block
    working = terms["working"]
    return {
        "static": terms["static"] | rank_static | away.ring(rank_static),
        "layer_static": layer_static,
        "layer_activation": {"activations": np.where(away.activations[:, None], 0.0, kept)},
        "layer_update": layer_update,
        "rank_update": rank_update | away.update_buffers(),
        "embedding_static": terms["embedding_static"] | sizes.held_end(ends, sizes.counts.embedding),
        "embedding_update": sizes.updated(ends, sizes.counts.embedding),
        "head_static": terms["head_static"] | sizes.held_end(ends, sizes.head),
        "head_update": sizes.updated(ends, sizes.head),
        "working": {
            "working": working["working"] + np.where(away.activations[:, None], 2 * kept, 0.0),
            "gradients": np.broadcast_to(away.made_gradients[:, None], kept.shape),
        },
    }


class OnDevice:
    """Some layouts' blocks, by where their states live."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes, self._question, self._columns = sizes, sizes.question, sizes.columns
        self._known: dict[str, tuple[StateBytes, StateBytes]] = {RESIDENT: (sizes.states, sizes.experts)}

    @property
    def activations(self) -> Bools:
        """(N,): whether blocks keep nothing for the backward pass on the device."""
        return rest_is(self._columns, "activations")

    def states(self, residency: str) -> tuple[StateBytes, StateBytes]:
        """Bytes per parameter of a block with a residency, and of its routed experts."""
        if residency not in self._known:
            own = held_on_device(self._question, self._columns, residency)
            dense, routed = (
                state_bytes(self._question, self._columns, experts=experts, held=own)
                for experts in (False, True)
            )
            self._known[residency] = (dense, routed)
        return self._known[residency]

    def summed(self, term_of: TermOf) -> tuple[Term, Term]:
        """A term of every block, and what a rank has of it besides (`residency`)."""

        def of(part: str) -> Affine:
            return over_residencies(self._columns, lambda where: term_of(*self.states(where))[part])

        each = {part: of(part) for part in term_of(*self.states(RESIDENT))}
        return {part: one.layer for part, one in each.items()}, {part: one.rank for part, one in each.items()}

    @cached_property
    def of_ends(self) -> StateBytes:
        """Bytes per parameter of embedding and head: as the blocks that no count names, where the stack says so."""
        if not self._question.stack.offloads_ends:
            return self._sizes.ends[0]

        def of(name: str) -> Array:
            return over_residencies(self._columns, lambda where: getattr(self.states(where)[0], name)).layer

        return StateBytes(**{field.name: of(field.name) for field in fields(StateBytes)})

    def ring(self, besides: Term) -> Term:
        """Adds the buffers of streamed weights, and of gradients that have as many, to what a rank has besides."""
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
        most = _GRADIENT_BUFFERS * self._question.stack.keeps_streamed_blocks
        at_once = np.minimum(1 if is_own_host(self._question.cluster) else most, self._blocks("streamed"))
        return np.where(self._gradients_apart, at_once * self._of_block("gradients"), 0.0)

    @property
    def _gradients_apart(self) -> Bools:
        """(N,): whether gradients of streamed blocks have buffers of their own."""
        return (self._columns.zero < 2) & self._question.stack.keeps_streamed_blocks

    def update_buffers(self) -> Term:
        """States of parked blocks that are on the device during the update."""
        at_once = np.minimum(PARKED_AT_ONCE, self._blocks("parked"))
        return {"optimizer": at_once * self._of_block("optimizer")}

    def _blocks(self, part: str) -> Array:
        """(N,) blocks of a rank with a residency, spread evenly."""
        return held(self._columns, part, self._question.model.num_layers / self._columns.pp)

    def _of_block(self, name: str) -> Array:
        """(N,) bytes of a resident block: one of the fields of `StateBytes`."""
        counts = self._sizes.counts
        dense, routed = self.states(RESIDENT)
        own: Array = getattr(dense, name) * counts.block + getattr(routed, name) * counts.experts
        return own


def offload_seconds(pieces: Pieces, terms: Terms) -> Terms:
    """The coefficients of time of layouts that offload something."""
    question, columns = pieces.question, pieces.columns
    if question.training.reference == "host":
        return {"layer_forward": terms["layer_forward"] | _streamed_reference(pieces)}
    if not offloads(columns).any():
        return {}
    on_device = _updated_on_device(columns, terms["layer_optimizer"]["optimizer"])
    shown = exposed_seconds(question, columns, _passes(pieces))
    busiest = channel_seconds(question, columns).longest(overlaps=question.stack.drive.overlaps)
    waits = {"offload": shown, "offload_hidden": busiest.clip(shown) - shown}
    rank = terms["rank_optimizer"]
    changed = {
        "layer_backward": terms["layer_backward"] | _moved_activations(pieces, terms),
        "layer_optimizer": terms["layer_optimizer"] | {"optimizer": on_device.layer},
        "rank_optimizer": rank | {"optimizer": on_device.rank + rank["optimizer"]} | waits,
    }
    if question.stack.offloads_ends:
        by_cpu = rest_is(columns, "states") | rest_is(columns, "streamed")
        for name in {"embedding_optimizer", "head_optimizer"} & {*terms}:
            changed[name] = terms[name] | {"optimizer": np.where(by_cpu, 0.0, terms[name]["optimizer"])}
    return changed


def _streamed_reference(pieces: Pieces) -> Term:
    """What a block of a reference model waits for its weights, which come in each of its forward passes while the block
    before runs."""
    come = reference_bytes(pieces.question, pieces.columns) / link_rate(pieces.question, pieces.columns)
    shown = np.maximum(0.0, come - pieces.block.forward)
    return {"offload": shown, "offload_hidden": come - shown}


def _moved_activations(pieces: Pieces, terms: Terms) -> Term:
    """What a block waits for its activations, going down as the next block runs and up as the one before does."""
    question, columns = pieces.question, pieces.columns
    away = columns.offload_activations > 0
    if not away.any():
        return {}
    moved = away[:, None] * activation_bytes(question, columns).block / link_rate(question, columns)[:, None]
    forward = pieces.block.forward[:, None]
    backward = pieces.block.backward[:, None] + terms["layer_backward"]["recompute"]
    shown = np.maximum(0.0, moved - forward) + np.maximum(0.0, moved - backward)
    return {"offload": shown, "offload_hidden": 2 * moved - shown}


_UPDATED_ON_DEVICE = (RESIDENT, "parked")


def _updated_on_device(columns: LayoutColumns, block: Array) -> Affine:
    """Seconds in which a rank's device updates blocks, each of which takes `block`."""
    none = np.zeros(len(columns))
    return over_residencies(columns, lambda part: block if part in _UPDATED_ON_DEVICE else none)


def _passes(pieces: Pieces) -> Array:
    """(N,) seconds of a step's passes of an even share of the blocks."""
    question, columns = pieces.question, pieces.columns
    blocks = question.model.num_layers / columns.pp * columns.microbatches(question.training.global_batch)
    return blocks * (pieces.block.forward + pieces.block.backward)


def least_update(question: Question, corners: Sequence[LayoutColumns]) -> Array:
    """(N,) seconds that `rank_optimizer` has at least, of all layouts between some that differ in how many blocks they
    offload alone: device and channels where each has least to do."""
    first = corners[0]
    pieces = Pieces(question, first)
    block = block_update(pieces)
    on_device = reduce(np.minimum, [_updated_on_device(own, block).rank for own in corners])
    channels = ChannelSeconds.least([channel_seconds(question, own) for own in corners])
    microbatches = first.microbatches(question.training.global_batch)
    waits = left_in_sight(question, channels, _passes(pieces), microbatches)
    seconds: Array = on_device + pieces.device.profile.kernel_seconds + waits
    return seconds * (1 + jitter(question, first))


def tiers(question: Question, layout: Layout) -> Mapping[str, Any]:
    """The fullest host and drive of a layout that keeps something there; nothing of others."""
    if not any(layout.offload) and question.training.reference != "host":
        return {}
    columns, pools = LayoutColumns.of([layout]), question.by_pool
    used = tuple(dict.fromkeys(policy for one in layout.recompute for policy in policies_in(one)))
    size, limit = _fullest(
        (float(host_bytes(pool, columns, used)[0]), usable_host_memory(pool.cluster)) for pool in pools
    )
    found = {"host_bytes": size, "host_limit": limit}
    if layout.offload.drive:
        found["drive_bytes"], found["drive_limit"] = _fullest(
            (float(drive_bytes(pool, columns)[0]), usable_drive(pool.cluster)) for pool in pools
        )
    return found


def _fullest(found: Iterable[tuple[float, float]]) -> tuple[float, float | None]:
    """Of bytes and limits of pools the fullest; no limit where nobody says one."""
    size, limit = max(found, key=lambda one: one[0] / (one[1] or np.inf))
    return size, limit or None
