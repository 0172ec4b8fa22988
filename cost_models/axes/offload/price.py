"""Costs of offloaded blocks on the device: cost coefficients that offload changes, a lower bound on the
update for ranges of block counts, and memory used on host and drive.

A reference model in host memory is priced here too: its blocks are copied to the device in each of its
forward passes.

    memory  bytes that blocks leave on the device for each residency, the ring of streamed blocks, and host memory
    passes  seconds that a block waits for its activations to be copied out and back
    update  the device's share of a rank's update, and the seconds by which channels to host memory outlast the passes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, get_args

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import USUAL_RING, Layout
from cost_models.axes.offload.channels import ChannelSeconds, channel_seconds, exposed_seconds, link_rate
from cost_models.axes.offload.hosts import drive_bytes, host_bytes, reference_bytes
from cost_models.axes.offload.residency import (
    PARKED,
    RESIDENT,
    STATES,
    STREAMED,
    Affine,
    Residency,
    blocks_with,
    offloads,
    over_residencies,
    rest_is,
    states_on_device,
)
from cost_models.memory.activations import activation_bytes
from cost_models.memory.device import is_own_host, usable_drive, usable_host_memory
from cost_models.pipeline.seconds import Pieces, Term, Terms, block_update, jitter_share
from cost_models.pipeline.sizes import persistent_block, persistent_end, update_of, update_of_block
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec

_GRADIENT_BUFFERS = 2
"""Number of device buffers for gradients of streamed blocks in backward passes of the project's executor: one
is copied to the host as the next is filled (executor/axes/offload/streaming.py). A CPU copies them itself, so
it needs only one."""
PARKED_AT_ONCE = 2
"""Number of blocks whose parked states (on the host between updates) are on the device at a time during the
update: one is updated while the next arrives."""


def offload_bytes(pieces: Pieces, terms: Terms) -> Terms:
    """Memory coefficients that offload changes, with new values in bytes by part; empty for layouts without
    offload."""
    question, columns, counts, kept = pieces.question, pieces.columns, pieces.counts, pieces.kept.block
    if question.training.reference == "host":
        buffers = USUAL_RING * reference_bytes(question, columns)
        return {"static": terms["static"] | {"weights": buffers}}
    if not offloads(columns).any():
        return {}
    states = {
        where: [states_on_device(question, columns, where, experts=experts) for experts in (False, True)]
        for where in get_args(Residency)
    }

    def over_blocks(terms_of: Mapping[str, Term]) -> tuple[Term, Term]:
        """Sum `terms_of`, a term per block for each residency, over a rank's blocks: a part per block, and a
        constant part."""
        sums = {
            part: over_residencies(columns, {where: own[part] for where, own in terms_of.items()})
            for part in terms_of[RESIDENT]
        }
        return {part: one.layer for part, one in sums.items()}, {part: one.rank for part, one in sums.items()}

    def resident_bytes(name: str) -> Array:
        dense, routed = states[RESIDENT]
        size: Array = getattr(dense, name) * counts.block + getattr(routed, name) * counts.experts
        return size

    layer_static, rank_static = over_blocks(
        {at: persistent_block(pieces, *own) for at, own in states.items()}
    )
    layer_update, rank_update = over_blocks({at: update_of_block(pieces, *own) for at, own in states.items()})
    streamed, parked = (blocks_with(question, columns, part) for part in (STREAMED, PARKED))
    ring, own_host = np.minimum(columns.ring, streamed), is_own_host(question.cluster)
    separate_buffers = (columns.zero < 2) & question.stack.keeps_streamed_blocks  # separate gradient buffers
    made_at_once = np.minimum(1 if own_host else _GRADIENT_BUFFERS, streamed)
    away, working = rest_is(columns, "activations")[:, None], terms["working"]["working"]
    gradients = np.where(separate_buffers, made_at_once * resident_bytes("gradients"), 0.0)
    rank_static |= {
        "weights": rank_static["weights"] + ring * resident_bytes("weights"),
        "gradients": rank_static["gradients"]
        + np.where(separate_buffers, 0.0, ring) * resident_bytes("gradients"),
    }
    rank_update["optimizer"] = np.minimum(PARKED_AT_ONCE, parked) * resident_bytes("optimizer")
    changed: Terms = {
        "static": terms["static"] | rank_static,
        "layer_static": layer_static,
        "layer_activation": {"activations": np.where(away, 0.0, kept)},
        "layer_update": layer_update,
        "rank_update": rank_update,
        "working": {
            "working": working + np.where(away, 2 * kept, 0.0),
            "gradients": np.broadcast_to(gradients[:, None], kept.shape),
        },
    }
    if question.stack.offloads_ends:  # as blocks without a count
        for end, size in (("embedding", counts.embedding), ("head", pieces.head_parameters)):
            static, _ = over_blocks(
                {at: persistent_end(pieces, own, size) for at, (own, _) in states.items()}
            )
            changed[f"{end}_static"] = terms[f"{end}_static"] | static
            changed[f"{end}_update"], _ = over_blocks(
                {at: update_of(own, size) for at, (own, _) in states.items()}
            )
    return changed


def offload_seconds(pieces: Pieces, terms: Terms) -> Terms:
    """Time coefficients that offload changes, with new values in seconds by part; empty for layouts without
    offload."""
    question, columns, block = pieces.question, pieces.columns, pieces.block
    if question.training.reference == "host":  # each block's weights are copied while the block before runs
        come = reference_bytes(question, columns) / link_rate(question, columns)
        exposed = np.maximum(0.0, come - block.forward)
        return {
            "layer_forward": terms["layer_forward"] | {"offload": exposed, "offload_hidden": come - exposed}
        }
    if not offloads(columns).any():
        return {}
    on_device = _device_update(columns, terms["layer_optimizer"]["optimizer"])
    channels = channel_seconds(question, columns)
    busiest = channels.longest(overlaps=question.stack.drive.overlaps)
    exposed = exposed_seconds(question, columns, _passes(pieces), channels)
    rank = terms["rank_optimizer"]
    changed = {
        "layer_optimizer": terms["layer_optimizer"] | {"optimizer": on_device.layer},
        "rank_optimizer": rank
        | {"optimizer": on_device.rank + rank["optimizer"]}
        | {"offload": exposed, "offload_hidden": busiest.clip(exposed) - exposed},
    }
    away = columns.offload_activations > 0
    if away.any():  # copied out during the next block, back during the one before
        rate = link_rate(question, columns)[:, None]
        copy_seconds = away[:, None] * activation_bytes(question, columns).block / rate
        backward = block.backward[:, None] + terms["layer_backward"]["recompute"]
        waits = np.maximum(0.0, copy_seconds - block.forward[:, None]) + np.maximum(
            0.0, copy_seconds - backward
        )
        changed["layer_backward"] = terms["layer_backward"] | {
            "offload": waits,
            "offload_hidden": 2 * copy_seconds - waits,
        }
    if question.stack.offloads_ends:
        by_cpu = rest_is(columns, STATES) | rest_is(columns, STREAMED)
        for name in ("embedding_optimizer", "head_optimizer"):
            changed[name] = terms[name] | {"optimizer": np.where(by_cpu, 0.0, terms[name]["optimizer"])}
    return changed


def _device_update(columns: LayoutColumns, block: Array) -> Affine:
    """Seconds of the optimizer update on a rank's device, `block` seconds for each block that the device
    updates."""
    none = np.zeros(len(columns))
    return over_residencies(columns, {RESIDENT: block, PARKED: block, STATES: none, STREAMED: none})


def _passes(pieces: Pieces) -> Array:
    """(N,) seconds per step of the passes of all microbatches on a rank with an even share of the blocks."""
    question, columns = pieces.question, pieces.columns
    blocks = question.model.num_layers / columns.pp * columns.microbatches(question.training.global_batch)
    return blocks * (pieces.block.forward + pieces.block.backward)


def least_update(question: Question, corners: Sequence[LayoutColumns]) -> Array:
    """(N,) lower bound in seconds on the coefficient `rank_optimizer` of all layouts between `corners`, which
    differ only in their numbers of offloaded blocks. Device and channels each have their minimum over the
    corners."""
    pieces = Pieces(question, corners[0])
    block = block_update(pieces)
    on_device = reduce(np.minimum, [_device_update(own, block).rank for own in corners])
    channels = [channel_seconds(question, own) for own in corners]
    fastest = ChannelSeconds(*(reduce(np.minimum, own) for own in zip(*channels, strict=True)))
    waits = exposed_seconds(question, corners[0], _passes(pieces), fastest)
    seconds: Array = on_device + pieces.device.profile.kernel_seconds + waits
    return seconds * (1 + jitter_share(question, corners[0]))


def tiers(question: Question, layout: Layout) -> Mapping[str, Any]:
    """Bytes used and limit, by name, of host memory and drive in the fullest pool of an offloading layout;
    empty for other layouts."""
    if not any(layout.offload) and question.training.reference != "host":
        return {}
    columns = LayoutColumns.of([layout])

    def fullest(
        tier: str, size_in: Callable[[Question], Array], limit: Callable[[ClusterSpec], float]
    ) -> dict[str, Any]:
        sizes = [(float(size_in(pool)[0]), limit(pool.cluster)) for pool in question.pools]
        size, size_limit = max(sizes, key=lambda one: one[0] / (one[1] or np.inf))
        return {f"{tier}_bytes": size, f"{tier}_limit": size_limit or None}  # None: unknown

    usage = fullest("host", lambda pool: host_bytes(pool, columns, layout.policies), usable_host_memory)
    if layout.offload.drive:
        usage |= fullest("drive", lambda pool: drive_bytes(pool, columns), usable_drive)
    return usage
