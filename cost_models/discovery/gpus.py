"""The GPUs of a machine as the driver lists them, and which of the catalogue's they are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cost_models.documents import printable
from cost_models.errors import HostError, Problem
from cost_models.files import catalog
from cost_models.files.local import Machine
from cost_models.specs.cluster import GpuSpec

_FIELDS = ("index", "name", "memory.total", "power.limit", "pcie.link.gen.max", "pcie.link.width.max")
_MIG = "mig.mode.current"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LANE_BYTES = 0.25e9
"""Bytes/s of one lane of PCIe 1.0; each generation doubles it (with the usual rounding: 32 GB/s for 4.0 x16)."""
_LINE = re.compile(r"^\s*Link \d+:\s*([\d.]+) GB/s", re.ASCII)
_PAYLOAD = {26.562: 25.0, 25.781: 25.0, 53.125: 50.0}
"""GB/s of a link from the driver, which counts encoding bits → GB/s of datasheets, which do not:
NVLink 2 has 64 of 66 bits for data, NVLink 4 and 5 spend 1 of 17 on forward error correction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGpu:
    """Properties of one GPU as reported by the NVIDIA driver; 0 for values that the driver does not report."""

    index: int
    name: str
    memory_mib: float
    watts: float
    pcie: float
    """Bandwidth of its PCIe link, bytes/s, one direction: the lower of GPU and slot."""
    nvlinks: tuple[float, ...] = ()
    """Bandwidth of each NVLink that is up, bytes/s, one direction."""

    @property
    def nvlink(self) -> float:
        """Total bandwidth of all active NVLinks of the GPU, bytes/s in one direction."""
        return sum(self.nvlinks)


def read_gpus(machine: Machine) -> tuple[SeenGpu, ...]:
    """Read the GPUs visible to a job from the NVIDIA driver. Raises HostError: there is none, they are sliced, or
    of several kinds."""
    rows = _rows(machine)
    if not rows:
        hint = "ask on a node that has some (`srun meshwright cluster --discover`)"
        hint += "; this CPU is cluster `local`"
        problems = [Problem("", what) for what in machine.unsaid]
        raise HostError("no GPU on this machine", problems=problems, hint=hint)
    if any(row[-1] == "Enabled" for row in rows):
        sliced = "the GPUs are split into MIG slices, between which there are no links to train over"
        raise HostError(sliced, hint="`nvidia-smi -mig 0` makes them whole again (needs an administrator)")
    links = _nvlinks(machine)
    gpus = tuple(_gpu(row, links) for row in _visible(machine, rows))
    if len(kinds := list(dict.fromkeys(gpu.name for gpu in gpus))) > 1:
        indices = ",".join(str(gpu.index) for gpu in gpus if gpu.name == kinds[0])
        hint = f"choose with {_VISIBLE}: `{_VISIBLE}={indices} meshwright cluster --discover`"
        raise HostError(f"a node has one kind of GPU, this one {len(kinds)}: {', '.join(kinds)}", hint=hint)
    return gpus


def known_gpu(seen: SeenGpu) -> GpuSpec | None:
    """Catalogue entry of the GPU with the name that the driver reports; None if the catalogue has none."""
    specs = map(catalog.load_gpu, catalog.names("gpus"))
    return next((gpu for gpu in specs if seen.name in gpu.reported_as), None)


def _rows(machine: Machine) -> list[list[str]]:
    """Query `nvidia-smi` for a list of text cells per GPU; columns unknown to older drivers are empty."""
    for fields in ((*_FIELDS, _MIG), _FIELDS[:3]):
        query = f"--query-gpu={','.join(fields)}"
        output = machine.run("nvidia-smi", query, "--format=csv,noheader,nounits")
        rows = [[cell.strip() for cell in line.split(",")] for line in (output or "").splitlines()]
        if rows := [row for row in rows if len(row) == len(fields) and row[0].isdecimal()]:
            return [row + [""] * (len(_FIELDS) + 1 - len(row)) for row in rows]
    return []


def _visible(machine: Machine, rows: list[list[str]]) -> list[list[str]]:
    """Rows of the GPUs in `CUDA_VISIBLE_DEVICES`, in that order; all rows if the variable is unset or holds
    anything but GPU indices."""
    indices = machine.environment.get(_VISIBLE, "").replace(" ", "").split(",")
    by_index = {row[0]: row for row in rows}
    if indices == [""] or len(set(indices)) < len(indices):
        return rows
    if set(indices) <= set(by_index):
        return [by_index[index] for index in indices]
    given = printable(",".join(indices), limit=60)
    machine.unsaid.append(f"{_VISIBLE}=`{given}` does not number GPUs: all {len(rows)} count")
    return rows


def _gpu(row: list[str], links: dict[int, tuple[float, ...]]) -> SeenGpu:
    index, name, memory, watts, generation, width, _ = row
    lanes = _number(width) * 2 ** (_number(generation) - 1) if _number(generation) else 0.0
    return SeenGpu(
        index=int(index),
        name=printable(name, limit=80),
        memory_mib=_number(memory),
        watts=_number(watts),
        pcie=lanes * _LANE_BYTES,
        nvlinks=links.get(int(index), ()),
    )


def _number(text: str) -> float:
    """Parse a number printed by the driver; 0 for `[N/A]` and other text."""
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) else 0.0


def _nvlinks(machine: Machine) -> dict[int, tuple[float, ...]]:
    """Map each GPU index to the bandwidths of its active NVLinks, bytes/s; errors of boards without NVLink are
    ignored."""
    problem_count = len(machine.unsaid)
    output = machine.run("nvidia-smi", "nvlink", "--status") or ""
    del machine.unsaid[problem_count:]
    links: dict[int, tuple[float, ...]] = {}
    gpu = -1
    for line in output.splitlines():
        if heading := re.match(r"GPU (\d+):", line, re.ASCII):
            gpu = int(heading[1])
        elif link := _LINE.match(line):
            rate = float(link[1])
            links[gpu] = (*links.get(gpu, ()), _PAYLOAD.get(rate, rate) * 1e9)
    return links
