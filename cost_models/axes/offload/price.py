"""Prices of offloaded blocks: the cost coefficients that offload changes, a lower bound on the update for
ranges of block counts, and memory used on host and drive.

A reference model in host memory is priced here too: its blocks are copied to the device in each of its
forward passes.

    memory  bytes that blocks leave on the device for each residency, the ring of streamed blocks, and host memory
    passes  seconds that a block waits for its activations to be copied out and back
    update  the device's share of a rank's update, and the seconds by which channels to host memory outlast the passes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, get_args

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import USUAL_RING, Layout, Residency
from cost_models.axes.offload.channels import (
    ChannelSeconds,
    channel_seconds,
    exposed_seconds,
    link_rate,
    passes_seconds,
)
from cost_models.axes.offload.residency import (
    Affine,
    blocks_with,
    drive_bytes,
    host_bytes,
    offloads,
    offloads_rest,
    over_residencies,
    reference_bytes,
    states_on_device,
)
from cost_models.memory.activations import activation_bytes
from cost_models.memory.device import is_own_host, usable_drive, usable_host_memory
from cost_models.memory.states import StateBytes
from cost_models.operators.parameters import BLOCK_PARTS
from cost_models.pipeline.seconds import Pieces, Term, Terms, block_update, jitter_share
from cost_models.pipeline.sizes import persistent_block, persistent_end, update_of, update_of_block
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec

_GRADIENT_BUFFERS = 2
"""Number of device buffers for gradients of streamed blocks in backward passes of the project's executor: one
is copied to the host as the next is filled (executor/axes/offload/blocks.py). A CPU copies them itself, so
it needs only one."""
PARKED_AT_ONCE = 2
"""Number of blocks whose parked states (on the host between updates) are on the device at a time. During the
update one is updated while the next arrives."""


def offload_bytes(pieces: Pieces, terms: Terms) -> Terms:
    """New values of the memory cost coefficients that offload changes, in bytes by coefficient and part;
    empty without offload."""
    question, columns, counts = pieces.question, pieces.columns, pieces.counts
    activation_bytes = pieces.activations.block
    if question.training.reference == "host":
        buffers = USUAL_RING * reference_bytes(question, columns)
        return {"static": terms["static"] | {"weights": buffers}}
    if not offloads(columns).any():
        return {}
    on_device = partial(states_on_device, question, columns)
    states = {at: [on_device(at, part) for part in BLOCK_PARTS] for at in get_args(Residency)}

    def sums(terms_of: Mapping[Residency, Term]) -> tuple[Term, Term]:
        """Per-block term and constant term that give the sum of a cost over a rank's blocks as a linear
        function of the number of blocks. `terms_of` has the term of one block for each residency."""
        by_key = {key: {at: own[key] for at, own in terms_of.items()} for key in terms_of["resident"]}
        affine = {key: over_residencies(columns, values) for key, values in by_key.items()}
        return {key: one.layer for key, one in affine.items()}, {key: one.rank for key, one in affine.items()}

    pairs = zip(*states["resident"], strict=True)
    resident = StateBytes(*(dense * counts.block + routed * counts.experts for dense, routed in pairs))
    layer_static, rank_static = sums({at: persistent_block(pieces, *own) for at, own in states.items()})
    layer_update, rank_update = sums({at: update_of_block(pieces, *own) for at, own in states.items()})
    streamed, parked = blocks_with(question, columns, "streamed"), blocks_with(question, columns, "parked")
    ring, own_host = np.minimum(columns.ring, streamed), is_own_host(question.cluster)
    separate_buffers = (columns.zero < 2) & question.stack.keeps_streamed_blocks  # separate gradient buffers
    made_at_once = np.minimum(1 if own_host else _GRADIENT_BUFFERS, streamed)
    away = offloads_rest(columns, "activations")[:, None]
    working = terms["working"]["working"] + np.where(away, 2 * activation_bytes, 0.0)
    gradients = np.where(separate_buffers, made_at_once * resident.gradients, 0.0)[:, None]
    rank_static["weights"] += ring * resident.weights
    rank_static["gradients"] += np.where(separate_buffers, 0.0, ring) * resident.gradients
    rank_update["optimizer"] = np.minimum(PARKED_AT_ONCE, parked) * resident.optimizer
    changed: Terms = {
        "static": terms["static"] | rank_static,
        "layer_static": layer_static,
        "layer_activation": {"activations": np.where(away, 0.0, activation_bytes)},
        "layer_update": layer_update,
        "rank_update": rank_update,
        "working": {"working": working, "gradients": np.broadcast_to(gradients, activation_bytes.shape)},
    }
    if question.stack.offloads_ends:  # as blocks without a count
        for end, size in (("embedding", counts.embedding), ("head", pieces.head_parameters)):
            static, _ = sums({at: persistent_end(pieces, own, size) for at, (own, _) in states.items()})
            changed[f"{end}_static"] = terms[f"{end}_static"] | static
            changed[f"{end}_update"], _ = sums({at: update_of(own, size) for at, (own, _) in states.items()})
    return changed


def offload_seconds(pieces: Pieces, terms: Terms) -> Terms:
    """New values of the time cost coefficients that offload changes, in seconds by coefficient and part;
    empty for layouts without offload."""
    question, columns, block = pieces.question, pieces.columns, pieces.block
    if question.training.reference == "host":  # each block's weights are copied while the block before runs
        come = reference_bytes(question, columns) / link_rate(question, columns)
        exposed = np.maximum(0.0, come - block.forward)
        waits = {"offload": exposed, "offload_hidden": come - exposed}
        return {"layer_forward": terms["layer_forward"] | waits}
    if not offloads(columns).any():
        return {}
    on_device = _device_update(columns, terms["layer_optimizer"]["optimizer"])
    channels = channel_seconds(question, columns)
    busiest = channels.longest(overlaps=question.stack.drive.overlaps)
    exposed = exposed_seconds(question, columns, passes_seconds(pieces), channels)
    waits = {"offload": exposed, "offload_hidden": busiest.clip(exposed) - exposed}
    changed = {"layer_optimizer": terms["layer_optimizer"] | {"optimizer": on_device.layer}}
    rank = terms["rank_optimizer"]
    changed["rank_optimizer"] = rank | {"optimizer": on_device.rank + rank["optimizer"]} | waits
    away = columns.offload_activations > 0
    if away.any():  # copied out during the next block, back during the one before
        rate = link_rate(question, columns)[:, None]
        copy_seconds = away[:, None] * activation_bytes(question, columns).block / rate
        backward = block.backward[:, None] + terms["layer_backward"]["recompute"]
        exposed = np.maximum(0.0, copy_seconds - block.forward[:, None])
        exposed = exposed + np.maximum(0.0, copy_seconds - backward)
        waits = {"offload": exposed, "offload_hidden": 2 * copy_seconds - exposed}
        changed["layer_backward"] = terms["layer_backward"] | waits
    if question.stack.offloads_ends:
        by_cpu = offloads_rest(columns, "states") | offloads_rest(columns, "streamed")
        for name in ("embedding_optimizer", "head_optimizer"):
            changed[name] = terms[name] | {"optimizer": np.where(by_cpu, 0.0, terms[name]["optimizer"])}
    return changed


def _device_update(columns: LayoutColumns, block: Array) -> Affine:
    """Seconds that a rank's device takes to update its blocks, from the seconds of one block, (N,); blocks
    that the CPU updates take none."""
    none = np.zeros(len(columns))
    values: dict[Residency, Array] = {"resident": block, "parked": block, "states": none, "streamed": none}
    return over_residencies(columns, values)


def update_lower_bound(question: Question, corners: Sequence[LayoutColumns]) -> Array:
    """Lower bound on a rank's optimizer update in seconds, (N,), for layouts that differ only in their
    numbers of offloaded blocks. It bounds the coefficient `rank_optimizer` of all layouts between `corners`:
    device and channels each have their minimum over the corners."""
    pieces = Pieces(question, corners[0])
    block = block_update(pieces)
    on_device = reduce(np.minimum, [_device_update(own, block).rank for own in corners])
    channels = [channel_seconds(question, own) for own in corners]
    fastest = ChannelSeconds(*(reduce(np.minimum, own) for own in zip(*channels, strict=True)))
    waits = exposed_seconds(question, corners[0], passes_seconds(pieces), fastest)
    seconds: Array = on_device + pieces.device.profile.kernel_seconds + waits
    return seconds * (1 + jitter_share(question, corners[0]))


def tiers(question: Question, layout: Layout) -> Mapping[str, Any]:
    """Bytes that an offloading layout uses in host memory and on the drive, with the limit of each, in the
    pool of GPUs where it is fullest. Keys are such as `host_bytes` and `host_limit`. Empty for other
    layouts."""
    if not any(layout.offload) and question.training.reference != "host":
        return {}
    columns = LayoutColumns.of([layout])

    def fullest(tier: str, sizes: list[Array], limit_in: Callable[[ClusterSpec], float]) -> dict[str, Any]:
        """Estimate fields of one tier (host memory or drive): its bytes used and its limit, in the pool of
        GPUs where it is fullest."""
        limits = [limit_in(pool.cluster) for pool in question.pools]
        pairs = zip((float(size[0]) for size in sizes), limits, strict=True)
        size, limit = max(pairs, key=lambda pair: pair[0] / (pair[1] or np.inf))
        return {f"{tier}_bytes": size, f"{tier}_limit": limit or None}  # None: unknown

    sizes = [host_bytes(pool, columns, layout.policies) for pool in question.pools]
    usage = fullest("host", sizes, usable_host_memory)
    if layout.offload.drive:
        usage |= fullest("drive", [drive_bytes(pool, columns) for pool in question.pools], usable_drive)
    return usage
