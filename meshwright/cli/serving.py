"""`meshwright plan MODEL CLUSTER --serve`: which rows of a recommender's tables stay on the GPU while serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cost_models.errors import InputError, Problem
from meshwright.api.serving import serve
from meshwright.cli.output import Output, check_places
from meshwright.families.transformer.gpu_choices import single_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFlags:
    """Flags of `plan` that only serving knows; None where nothing was said."""

    cache: str | None = None
    hits: str | None = None
    batch: str | None = None
    policy: str | None = None
    zipf: float | None = None
    drive_rate: str | None = None

    def require_meant(self) -> None:
        """Raises InputError where one is said without `--serve`."""
        names = ("cache", "hits", "batch", "policy", "zipf", "drive_rate")
        if given := ["--" + name.replace("_", "-") for name in names if getattr(self, name) is not None]:
            problems = [Problem(flag, "goes with --serve") for flag in given]
            raise InputError("flags of serving without `--serve`", problems=problems)


def answer_serving(
    model: str,
    cluster: str,
    gpus: str | None,
    precision: str | None,
    host_memory: str | None,
    flags: ServingFlags,
    others: Mapping[str, object],
    out: Path | None,
    output: Output,
) -> None:
    """Plan the cache and print; `others` are flags that mean nothing here."""
    _require_meant(model, cluster, others)
    check_places(("-o", out), ("--csv", output.csv))
    count = None if gpus is None else single_count(gpus)
    if gpus is not None and count is None:
        raise InputError(f"--gpus: `{gpus}` is not one number of GPUs", hint="--serve asks about one")
    answer = serve(
        model,
        cluster,
        gpus=count,
        cache=flags.cache,
        hits=flags.hits,
        batch=flags.batch,
        precision=precision,
        policy=flags.policy,
        zipf=flags.zipf,
        drive_rate=flags.drive_rate,
        host_memory=host_memory,
    )
    output.assumed(answer.assumptions)
    output.show(answer, files=[] if out is None else [lambda: answer.save(out)])
    if out is not None:
        output.note(f"Wrote {out}. Next: meshwright plot cache {out}")


def _require_meant(model: str, cluster: str, others: Mapping[str, object]) -> None:
    missing = [noun for noun, value in (("MODEL", model), ("CLUSTER", cluster)) if not value]
    if missing:
        raise InputError(
            "nothing to serve",
            problems=[Problem(noun, "missing") for noun in missing],
            hint="meshwright plan recommender.yaml dgx-h100 --gpus 1 --serve --cache 8GiB",
        )
    given = ["--" + name.replace("_", "-") for name, value in others.items() if value not in (None, (), "")]
    if given:
        raise InputError(
            "`--serve` takes fewer flags",
            problems=[Problem(flag, "means nothing beside --serve") for flag in given],
        )
