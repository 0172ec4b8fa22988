"""A cluster with measured rates, for machines without a datasheet: MFU is then relative to the best rate seen."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import CollectiveCurve, CurvePoint, HardwareProfile
from cost_models.specs.links import LinkSpec


def measured_cluster(profile: HardwareProfile, base: ClusterSpec) -> ClusterSpec:
    """`base` with the peak, bandwidth and links that the profile measured; unchanged where it measured none.

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
