"""The GPU, node and network that a row ran on, from what its author wrote.

The GPU cell may name memory, power limit and bandwidth of that very board, as `H100 SXM 96GB HBM2e (500W, 2.4TB/s)`.
The bandwidth of a GPU's share of its node's network is given in bits or bytes, per GPU or per node.
"""

from __future__ import annotations

import re
from typing import Any

from cost_models.files import catalog
from cost_models.files.local import LOCAL
from cost_models.measured.runs.rows import Notes, Row, meaning, with_note
from cost_models.specs.cluster import ClusterSpec, GpuSpec, Links, LinkSpec
from cost_models.units import GIB

_MEMORY = re.compile(r"(?<![\d.])(\d{2,3})\s*gi?b\b(?!\s*/\s*s)", re.IGNORECASE)
_WATTS = re.compile(r"(?<![\d.])(\d{2,4})\s*w(?:atts?)?\b", re.IGNORECASE)
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*([tg])b\s*/\s*s", re.IGNORECASE)
_SCALES = {"g": 1e9, "t": 1e12}
_REPORTED = 79.1 / 80
"""GiB that the runtime reports for each GB of an H100's label."""
_SAME_LABEL = 0.07
"""Difference between label and catalogue within which a cell names the catalogue's own board."""
_BOARDS = (0.5, 1.6)
"""Range of a board's memory relative to the catalogue's GPU; beyond, a cell counts several GPUs."""


def board_of_cell(gpu: GpuSpec, words: str, notes: Notes) -> GpuSpec:
    """GPU specification with the memory, power limit and bandwidth that the words of a row's GPU cell state."""
    label, limit, rate = (pattern.search(words) for pattern in (_MEMORY, _WATTS, _BANDWIDTH))
    memory = int(label[1]) * _REPORTED * GIB if label else gpu.memory
    ratio, printed = memory / gpu.memory, dict[str, Any]()
    other_board = abs(ratio - 1) > _SAME_LABEL and _BOARDS[0] < ratio < _BOARDS[1]
    printed |= {"memory": memory} if other_board else {}
    printed |= {"tdp_watts": int(limit[1])} if limit else {}
    printed |= {"memory_bandwidth": float(rate[1]) * _SCALES[rate[2].lower()]} if rate else {}
    changed = {name: value for name, value in printed.items() if value != getattr(gpu, name)}
    if changed:
        notes.append(f"{', '.join(name.replace('_', ' ') for name in changed)} as the GPU's cell says")
    return gpu.model_copy(update=changed)


_RATE = r"(?P<rate>\d+(?:\.\d+)?)\s*(?P<scale>[gGtT])"
_UNIT = r"(?P<unit>[bB](?:(?:it|yte)s?)?)"
_RAILS = re.compile(rf"(?P<rails>\d+)\s*[x×]\s*{_RATE}\s*{_UNIT}?")
_SPEED = re.compile(rf"{_RATE}\s*-?{_UNIT}(?:ps|/s|it/s|E\b|(?<=it)|(?<=its))(?!\s*memory)", re.IGNORECASE)
_GENERATION = re.compile(r"(?i)((?P<rails>\d+)\s*[x×]\s*)?[hnx]dr[- ]?(?P<rate>[1248]00)\b(?!\s*[gt]b)")
"""Pattern of InfiniBand by generation and Gb/s, as in `8x NDR400`."""
_OMNI_PATH = re.compile(r"(?P<rails>\d+)\s*[x×]\s*omni", re.IGNORECASE)
_NVLINK, _BYTES = r"nv(?:link|switch)", r"\d+(?:\.\d+)?\s*[GT]B/s"
_BUS = re.compile(rf"(?i){_NVLINK}[^,;+]*?{_BYTES}|{_BYTES}[^,;+]*?{_NVLINK}")
"""Words for the links inside a node."""
_ADAPTER = r"connectx|\bcx-?\d|infiniband|\bib\b|roce|ethernet|\bhca|\bnics?\b|[hnex]dr|efa|slingshot|omni"
"""Words for an adapter of the network, which may itself be said to sit on PCIe."""
_OTHER_USE = r"manage|mgmt|\bbmc\b|out[- ]of[- ]band|storage|front[- ]?end|in[- ]band"
_NO_NETWORK = re.compile(rf"(?is){_OTHER_USE}|^(?!.*(?:{_ADAPTER})).*pcie")
"""Words for networks that training does not use, and for the host's bus where no adapter is named."""
_PER_GPU = re.compile(r"(per|a|/)\s*(gpu|device|chip|accelerator|gcd)|per-gpu", re.IGNORECASE)
_ONE_ADAPTER = re.compile(r"ethernet|gbe\b|\btcp", re.IGNORECASE)
_ONE_ADAPTER_BITS, _OMNI_PATH_BITS = 101e9, 100e9
_ADAPTER_BITS = 401e9
"""Bits/s of the fastest adapter in the tables: a higher figure is a whole node's."""


def network_bits(words: str, per_node: int) -> float | None:
    """Network bandwidth of a node divided by its GPUs, in bits/s; None where the words state none.

    A rate that one adapter can have is a GPU's, unless the words say node or it is the instance's (EFA) or the only
    one of its box (Ethernet up to 100 Gb/s).
    """
    if match := _OMNI_PATH.search(words):
        return int(match["rails"]) * _OMNI_PATH_BITS / per_node
    parts = re.split(r"([,;+()])", _BUS.sub("", words))
    outside = "".join(part for part in parts if not _NO_NETWORK.search(part))
    if several := [int(match["rails"]) * _bits(match) for match in _RAILS.finditer(outside)]:
        return max(several) / per_node
    if match := _SPEED.search(outside):
        bits = _bits(match)
        of_node = re.search(r"node|instance|\befa\b", outside, re.IGNORECASE) or bits > _ADAPTER_BITS
        single_adapter = _ONE_ADAPTER.search(outside) and bits < _ONE_ADAPTER_BITS
        return bits / per_node if (of_node or single_adapter) and not _PER_GPU.search(outside) else bits
    if match := _GENERATION.search(outside):
        bits = float(match["rate"]) * 1e9
        return bits * int(match["rails"]) / per_node if match["rails"] else bits
    return None


def _bits(match: re.Match[str]) -> float:
    """Bits/s of a matched rate, with `GB` and `Gbyte` read as bytes and `Gb`, `Gbit`, `GbE` and a bare `G` as
    bits."""
    in_bytes = re.fullmatch(r"B|(?i:bytes?)", match["unit"] or "")
    return float(match["rate"]) * _SCALES[match["scale"].lower()] * (8 if in_bytes else 1)


_BOX = re.compile(r"\s*([1-9]|1[0-6])\s*[x×]\s*[a-z]", re.IGNORECASE)
"""Number of a node's GPUs before their name: `8 x H100 SXM5`."""
_USUAL_BOX = 8
_PCIE = LinkSpec.model_validate({"kind": "pcie", "bandwidth": "32 GB/s", "latency": "5 us"})
"""Link between a GPU and its host, at the bandwidth of most."""
_UNNAMED_NETWORK = LinkSpec.model_validate({"kind": "infiniband", "bandwidth": "100 Gb/s", "latency": "5 us"})
"""Network between boxes that the catalogue has without one: an EDR adapter a GPU."""
_LARGEST_BOX = 16
"""Largest number of GPUs in a machine; a catalogue node with more is a rack."""


def cluster_of(row: Row, gpu: str, num_gpus: int, notes: Notes) -> ClusterSpec:
    """Catalogue cluster of the GPU, with the row's node size and network where given."""
    words = row.text("interconnect")
    cluster = _catalogue_cluster(gpu, words)
    stated, box = row.count("gpus_per_node"), _BOX.match(row.text("gpu"))
    per_node = stated or (int(box[1]) if box else cluster.gpus_per_node)
    if not stated and not box:
        notes.append(f"{per_node} GPUs a node")
    if cluster.gpus_per_node > _LARGEST_BOX:  # a rack is one NVLink domain, whatever sits in a tray
        per_node = _allocated(num_gpus, max(per_node, cluster.gpus_per_node), notes)
    per_node = min(per_node, num_gpus)
    bits = network_bits(words, stated or cluster.gpus_per_node)
    intra, inter = cluster.links.intra_node, cluster.links.inter_node
    if bits is not None and inter is not None:
        inter = inter.model_copy(update={"bandwidth": bits / 8})
    elif num_gpus > per_node:
        inter = inter or _UNNAMED_NETWORK
        notes.append(f"network of {inter.bandwidth * 8 / 1e9:.0f} Gb/s a GPU")
    if intra.kind in ("nvlink", "nvswitch") and "pcie" in words.lower() and "nvlink" not in words.lower():
        intra = _through_host(cluster.gpu)
    match = _RAILS.search(_BUS.sub("", words))
    adapters = int(match["rails"]) if match else 0
    rails = adapters if adapters and per_node % adapters == 0 else None
    size = {"gpus_per_node": per_node, "nodes": -(-num_gpus // per_node), "rails": rails}
    board = board_of_cell(cluster.gpu, row.text("gpu"), notes)
    links = Links(intra_node=intra, inter_node=inter)
    return cluster.model_copy(update=size | {"gpu": board, "links": links})


def _allocated(num_gpus: int, rack: int, notes: Notes) -> int:
    """GPUs that a job of several racks uses in each, all of them, or a power of two (64 of 72) where only that
    divides the job.

    Megatron Bridge's recipes give HybridEP 64 ranks of an NVLink domain of 72 (perf_recipes, `NVLINK_DOMAIN_SIZE`).
    """
    even = 1 << (rack.bit_length() - 1)
    if num_gpus <= rack or num_gpus % rack == 0 or num_gpus % even:
        return rack
    return with_note(even, f"{even} of a rack's {rack} GPUs", notes)


def _catalogue_cluster(gpu: str, words: str) -> ClusterSpec:
    """Catalogue cluster of the GPU with the network named in `words`; where none is named, InfiniBand if
    there is one."""
    specs = map(catalog.load_cluster, (name for name in catalog.names("clusters") if name != LOCAL))
    # a row names a node and a network, no levels
    candidates = [spec for spec in specs if spec.gpu.name == gpu and isinstance(spec.links, Links)]
    network = meaning("networks", words.lower()) or "infiniband"
    if not candidates:
        links = Links(intra_node=_through_host(spec := catalog.load_gpu(gpu)))
        return ClusterSpec(name=gpu, gpu=spec, gpus_per_node=_USUAL_BOX, links=links)
    networks = ((spec, spec.links.inter_node) for spec in candidates)
    return next((spec for spec, link in networks if link and link.kind == network), candidates[0])


def _through_host(gpu: GpuSpec) -> LinkSpec:
    """PCIe link between the GPUs of a node, for cards that have nothing faster."""
    assert gpu.host_bandwidth is not None, f"{gpu.name} of the catalogue has a link to its host"
    return _PCIE.model_copy(update={"bandwidth": gpu.host_bandwidth})
