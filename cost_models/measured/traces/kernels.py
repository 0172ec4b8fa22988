"""Which part of a step a kernel belongs to: by the process group of a collective, by its name, by patterns of
`data/traces/kineto.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.base import Spec
from cost_models.files import read_data
from cost_models.measured.traces.events import Event

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of what runs on a GPU."""
AXES = ("tp", "cp", "ep", "pp", "dp")
"""Axes of communication, those first whose ranks wait for it where several are at work."""
OTHER, UNNAMED = "other", "unnamed"
"""A kernel that nothing names; communication of a group that is of no axis."""
_NUMBERS = re.compile(r"\d+")
_MOST_NAMES = 1_000


class Patterns(Spec):
    """The content of the data file."""

    source: str
    step: str
    """Annotation of one step; its group is the number."""
    update: tuple[str, ...]
    """Annotations of the optimizer's update, by words in them."""
    loading: tuple[str, ...]
    """Annotations of waits for a batch, by words in them."""
    wait: str
    """Annotation of a wait; its group is what for."""
    passed: str
    """Annotation of a pass; its groups are kind, stage and microbatch."""
    groups: tuple[tuple[str, str], ...]
    """Description of a process group → axis."""
    communication: tuple[str, ...]
    """Words in names of kernels that send or receive."""
    to_host: tuple[str, ...]
    """Words in names of copies to and from host memory."""
    optimizer: tuple[str, ...]
    compute: tuple[str, ...]
    """Patterns of names of kernels that compute; a kernel that nothing names is `other`."""


@cache
def patterns() -> Patterns:
    """The patterns of the data file."""
    return Patterns.model_validate(read_data("traces/kineto"), strict=False)


@dataclass(slots=True)
class Parts:
    """Kernels → parts of a step of one layout."""

    layout: Layout
    unknown: dict[str, float] = field(default_factory=dict)
    """Name of a kernel that nothing names → its seconds."""
    _known: dict[str, str] = field(default_factory=dict)
    _groups: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def part_of(self, event: Event) -> str:
        """`compute`, `optimizer`, `offload`, an axis of `AXES`, `other`, or `unnamed`."""
        known = self._known.get(event.name)
        if known is None:
            known = self._by_name(event)
            if len(self._known) < 100 * _MOST_NAMES:
                self._known[event.name] = known
        if known == "communication":
            return self._axis(event)
        if known == OTHER and (event.name in self.unknown or len(self.unknown) < _MOST_NAMES):
            self.unknown[event.name] = self.unknown.get(event.name, 0.0) + event.seconds
        return known

    def _by_name(self, event: Event) -> str:
        name, told = event.name.lower(), patterns()
        if event.category != "kernel":
            return "offload" if any(word in name for word in told.to_host) else "compute"
        if any(word in name for word in told.communication):
            return "communication"
        if any(re.search(one, name) for one in told.optimizer):
            return "optimizer"
        return "compute" if any(re.search(one, name) for one in told.compute) else OTHER

    def _axis(self, event: Event) -> str:
        said = event.details
        group = str(said.get("Process Group Description", "")).lower()
        ranks = str(said.get("Process Group Ranks", ""))
        kind = str(said.get("Collective name") or event.name).lower()
        key = (group, ranks, kind)
        if key not in self._groups:
            self._groups[key] = self._axis_of(group, ranks, said, kind) or UNNAMED
        return self._groups[key]

    def _axis_of(self, description: str, ranks: str, said: Mapping[str, Any], kind: str) -> str:
        """By the group's description, else by its ranks, else by the kind of the collective."""
        layout = self.layout
        there = [axis for axis in AXES if getattr(layout, axis) > 1]
        for pattern, axis in patterns().groups:
            if axis in there and re.search(pattern, description):
                return axis
        first, *others = [int(one) for one in _NUMBERS.findall(ranks)[:2]] or [0]
        shape = (said.get("Group size"), others[0] - first if others else 0)
        for axis in there:
            if axis != "ep" and shape == (getattr(layout, axis), layout.stride(axis)):
                return axis
        if layout.cp > 1 and shape[0] == layout.data_ranks:
            return "dp"
        if layout.pp > 1 and shape[0] in (layout.num_gpus, layout.tp * layout.cp * layout.pp):
            return "pp"  # the norm of gradients, of all stages: they wait for the last
        if "alltoall" in kind.replace("_", ""):
            return "ep" if "ep" in there else "cp" if "cp" in there else ""
        if any(word in kind for word in ("send", "recv")):
            return next((axis for axis in ("pp", "cp", "ep") if axis in there), "")
        meet = [axis for axis in there if axis in ("tp", "dp", "cp")]
        return meet[0] if len(meet) == 1 else ""
