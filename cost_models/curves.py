"""Measured curves, size → seconds, and a cluster with measured rates.

Curves are interpolated in log-log between their points and extrapolated below and above. For machines without a
datasheet the peak is the best rate seen, so that MFU is relative to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.arrays import Array
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import AttentionCurve, CollectiveCurve, CurvePoint, HardwareProfile
from cost_models.specs.links import LinkSpec


def curve_seconds(points: Sequence[CurvePoint], size: Array) -> Array:
    """Seconds at each `size` (any shape); zero where there are no points or the size is zero.

    Between points the curve is straight in log-log. Below the smallest size it keeps that point's seconds
    (start-up); above the largest it keeps that point's rate (seconds grow with size).
    """
    sizes = np.asarray(size, dtype=np.float64)
    if not points:
        return np.zeros(sizes.shape)
    ordered = sorted(points, key=lambda point: point.size)
    known_sizes = np.array([point.size for point in ordered])
    known_seconds = np.array([point.seconds for point in ordered])
    positive = np.maximum(sizes, np.finfo(np.float64).tiny)
    seconds = np.exp(np.interp(np.log(positive), np.log(known_sizes), np.log(known_seconds)))
    beyond = np.maximum(positive / known_sizes[-1], 1.0)
    return np.where(sizes > 0, seconds * beyond, 0.0)


def attention_head_seconds(
    curves: Sequence[AttentionCurve], sequence: Array, head_dim: int
) -> tuple[Array, Array]:
    """(forward, backward) seconds of one head of one sequence at each sequence length.

    Sequence lengths outside the measured ones scale with their square. Between measured head widths seconds
    are interpolated linearly; outside them they scale with the width.
    """
    ordered = sorted(curves, key=lambda curve: curve.head_dim)
    lengths = np.asarray(sequence, dtype=np.float64)
    forward = np.stack([_quadratic_ends(curve.forward, lengths) for curve in ordered])
    backward = np.stack([_quadratic_ends(curve.backward, lengths) for curve in ordered])
    widths = np.array([curve.head_dim for curve in ordered], dtype=np.float64)
    inside = float(np.clip(head_dim, widths[0], widths[-1]))
    weights = np.array([np.interp(inside, widths, row) for row in np.eye(len(widths))])
    scale = head_dim / inside
    return scale * np.tensordot(weights, forward, axes=1), scale * np.tensordot(weights, backward, axes=1)


def _quadratic_ends(points: Sequence[CurvePoint], lengths: Array) -> Array:
    """Seconds on the curve between its points; outside them proportional to the length squared."""
    sizes = [point.size for point in points]
    inside = np.clip(lengths, min(sizes), max(sizes))
    return curve_seconds(points, inside) * (lengths / inside) ** 2


def measured_cluster(profile: HardwareProfile, base: ClusterSpec) -> ClusterSpec:
    """`base` with the peak, bandwidth and links of the profile, where it has measured them.

    The peak of a CPU is then the best fp32 product seen with all processes running, so MFU is relative to
    that and the GPU's `source` says so.
    """
    gpu = base.gpu
    if profile.measured_peak and profile.measured_bandwidth:
        gpu = gpu.model_copy(
            update={
                "peak": dict.fromkeys(gpu.peak, profile.measured_peak),
                "memory_bandwidth": profile.measured_bandwidth,
                "source": f"no datasheet: peak is the best matrix rate seen ({profile.source})",
            }
        )
    links = base.links
    if link := _measured_link(profile.collectives, links.intra_node):
        links = links.with_intra_node(link)
    return base.model_copy(update={"gpu": gpu, "links": links})


def _measured_link(collectives: Sequence[CollectiveCurve], link: LinkSpec) -> LinkSpec | None:
    """The link of a measured point-to-point curve: rate of its largest message, latency of its smallest."""
    for curve in collectives:
        if curve.operation == "p2p":
            largest: CurvePoint = max(curve.points, key=lambda point: point.size)
            smallest: CurvePoint = min(curve.points, key=lambda point: point.size)
            rate = largest.size / largest.seconds
            return link.model_copy(update={"bandwidth": rate, "latency": smallest.seconds})
    return None
