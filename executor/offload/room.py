"""Checks of the drive before a run starts: is the folder there, can it be written to, has it the room?"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cost_models.errors import HostError
from cost_models.units import format_bytes
from executor.run_config import RunConfig
from planner.plan import Plan


def drive_folder(config: RunConfig) -> Path:
    """Where states on the drive lie: a folder that is yet to be made stands for the one it will be in."""
    if config.drive is not None:
        return config.drive
    if config.out is None:
        return Path(tempfile.gettempdir())
    out = config.out.absolute()
    return next(folder for folder in (out, *out.parents) if folder.exists())


def require_drive(plan: Plan, folder: Path, nodes: int = 1) -> None:
    """Raise HostError where a folder cannot hold what this host's ranks of the plan have on the drive."""
    if not plan.layout.offload.drive:
        return
    if problem := _unusable(folder):
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


def _unusable(folder: Path) -> str:
    """Why nothing can be written to a folder."""
    if not folder.exists():
        return "there is no such folder"
    if not folder.is_dir():
        return "is no folder"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return (error.strerror or str(error)).lower()
