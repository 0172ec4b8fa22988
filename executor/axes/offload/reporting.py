"""Report of a run's offload, and checks of hosts before one; imports no torch, as launchers use it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cost_models.axes.layout import NOWHERE
from cost_models.base import Spec
from cost_models.errors import HostError, InputError
from cost_models.files.whole import folder_obstacle
from cost_models.units import format_bytes
from executor.run_config import RunConfig
from planner.plan import Plan


class HostReport(Spec):
    """Host memory of a rank whose layout offloads, and its copies and CPU updates in each step."""

    peak_bytes: int = 0
    """Peak bytes in host memory; 0 if not measured."""
    predicted_bytes: float
    """Bytes in host memory that the plan predicts."""
    down_bytes: tuple[int, ...]
    """Bytes copied from the device to host memory in each step."""
    up_bytes: tuple[int, ...]
    """Bytes copied from host memory to the device in each step."""
    copy_seconds: tuple[float, ...]
    """Seconds of these copies in each step, both directions added; on a GPU other work runs meanwhile."""
    update_seconds: tuple[float, ...]
    """Seconds of the CPU's updates in each step."""
    predicted_copy_seconds: float
    """Seconds of copies in a step that the plan predicts."""
    predicted_update_seconds: float
    """Seconds of CPU updates in a step that the plan predicts."""


class DriveReport(Spec):
    """Bytes of a rank on its host's drive, and reads and writes in each step."""

    held_bytes: int
    predicted_bytes: float
    """Bytes on the drive that the plan predicts."""
    read_bytes: tuple[int, ...]
    written_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    """Seconds of reads and writes in each step; the update runs meanwhile."""
    predicted_read_bytes: float
    """Bytes read in a step that the plan predicts."""
    predicted_written_bytes: float
    """Bytes written in a step that the plan predicts."""
    predicted_seconds: float
    """Seconds of reads and writes in a step that the plan predicts; 0 if the drives' speed is not given."""


def require_offload(plan: Plan, config: RunConfig) -> None:
    """Raise InputError where a run's flags contradict the plan's offload: a drive not used, or compiled blocks."""
    if config.drive is not None and not plan.layout.offload.drive:
        raise InputError(
            "--drive: the plan keeps nothing on a drive", hint="leave it out, or plan `offload=states/drive`"
        )
    if config.compile and plan.layout.offload != NOWHERE:
        raise InputError(
            "compiled blocks stay on the device, and the plan keeps some in host memory",
            hint="leave out `compile`, or plan without `offload`",
        )


def drive_folder(config: RunConfig) -> Path:
    """Folder for optimizer states on the drive: `--drive`, else the output folder or its nearest existing parent."""
    if config.drive is not None:
        return config.drive
    if config.out is None:
        return Path(tempfile.gettempdir())
    out = config.out.absolute()
    return next(folder for folder in (out, *out.parents) if folder.exists())


def require_drive(plan: Plan, folder: Path, nodes: int = 1) -> None:
    """Raise HostError where a folder cannot hold the optimizer states of this host's ranks."""
    if not plan.layout.offload.drive:
        return
    if problem := folder_obstacle(folder):
        raise HostError(
            f"--drive {folder}: {problem}", hint="name a folder of the drive that can be written to"
        )
    ranks = plan.layout.num_gpus
    of_hosts = plan.prediction.drive_bytes or 0.0
    needed = of_hosts / min(ranks, plan.question.cluster.gpus_per_node) * (ranks // nodes)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise HostError(
            f"--drive {folder}: {format_bytes(needed)} of optimizer states need room there, and {format_bytes(free)}"
            " are free",
            hint="name a folder of another drive, or offload fewer blocks",
        )
