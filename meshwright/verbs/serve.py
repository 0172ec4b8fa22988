"""`serve`: answer lookups of embedding rows from planned caches; hits and latency, predicted beside measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import InputError
from cost_models.flags import Options, as_keywords, flag, plan_file
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from cost_models.specs.hardware import HardwareProfile
    from meshwright.families.recommender.serving import CacheServed
    from meshwright.terminal.output import Output
    from planner.serving import ServingPlan


class ServeOptions(Options):
    """Options of `serve`: the serving plan, requests or samples to draw, batch sizes, weights and drive."""

    plan: ServingPlan | str | Path = field(metadata=plan_file())
    """Plan of a cache, written by `meshwright plan --serve -o`."""
    _: KW_ONLY
    requests: Path | None = flag("FILE")
    """Requests: a line of JSON each, tables and their ids."""
    synthetic: int | None = flag("N", minimum=1, maximum=10**9)
    """Samples drawn per batch size; default 65536."""
    batch: str | int | Sequence[int] | None = flag("N,N,...")
    """Samples per request batch; default: the plan's."""
    scale: float = flag("SHARE", default=1.0)
    """Share of the plan's rows to hold, in every table and tier."""
    weights: Path | None = flag("DIR")
    """Checkpoint of `run` with the tables; default: drawn at random."""
    drive: Path | None = flag("DIR")
    """Folder for the rows on the drive."""
    profile: str | HardwareProfile | None = flag("NAME", completion="profiles")
    """Hardware profile of the server, from `calibrate`."""


@as_keywords(ServeOptions)
def serve(options: ServeOptions) -> CacheServed:
    """Answer lookups of embedding rows on one device of this machine, from the cache, host memory and drive that a
    serving plan fills.

    `requests` is a file of requests; without one, `synthetic` samples are drawn by the tables' access statistics.
    `batch` are batch sizes in samples, `scale` is the share of the plan's rows to hold, `weights` a folder of
    checkpoints, `drive` a folder for rows on the drive, and `profile` a hardware profile of this machine, which
    prices the planned figures.

    Raises:
        InputError: a broken plan, or requests or weights that do not go with it; everything that is, at once.
        HostError: no torch, or too little memory or room on the drive.
    """
    from meshwright.families.recommender.serving import serve

    return serve(options)


@command(ServeOptions, out="Write the vectors of the requests, as arrays by table (.npz).")
def serve_command(options: ServeOptions, output: Output) -> None:
    """Answer lookups of a recommender from its planned caches."""
    from meshwright.families.recommender.serving import serve

    output.check_places()
    if output.out is not None and options.requests is None:
        raise InputError("-o writes the vectors of requests, and there are none", hint="--requests FILE")
    output.finish(serve(options))
