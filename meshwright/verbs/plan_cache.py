"""`plan --serve`: which rows of a recommender's tables every GPU caches while serving, and what that hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

from cost_models.errors import InputError, Problem
from cost_models.flags import as_keywords, flag, flags_of, given_flags, part_of, switch
from meshwright.verbs.contract.answers import ServedAnswer
from meshwright.verbs.contract.family import ServesCaches, option_word, verbs_with

if TYPE_CHECKING:
    from pathlib import Path

    from cost_models.specs.cluster import ClusterSpec
    from cost_models.specs.hardware import HardwareProfile
    from cost_models.specs.recommender.model import RecommenderSpec
    from meshwright.terminal.output import Output
    from meshwright.verbs.plan import PlanFlags


@dataclass(frozen=True, kw_only=True)
class Cache:
    """The cache of every GPU: of a size, or the smallest with a share of hits."""

    cache: str | float | None = flag(
        "SIZE", "Size of the cache; default what memory is left.", only_with="serve"
    )
    hits: str | float | None = flag(
        "SHARE", "The smallest cache with this share of hits, e.g. 95%.", only_with="serve"
    )
    batch: str | int | Sequence[int] | None = flag("N,N,...", "Samples answered at once.", only_with="serve")
    policy: str | None = flag("WHICH", "Rows it keeps: hottest (default) or lru.", only_with="serve")
    zipf: float | None = flag(
        "S", "Zipf exponent of tables without one.", kind=float, minimum=0, maximum=5, only_with="serve"
    )
    drive_rate: str | float | None = flag("RATE", "Of a node's drives, below its memory.", only_with="serve")


@dataclass(frozen=True)
class CacheOptions(Cache):
    """What `plan_cache` takes."""

    model: str | Path | RecommenderSpec
    cluster: str | ClusterSpec
    _: KW_ONLY
    gpus: int | None = None
    precision: str | None = None
    profile: str | HardwareProfile | None = None
    host_memory: str | None = None


@dataclass(frozen=True, kw_only=True)
class CacheFlags(Cache):
    """Flags of `plan` that only serving knows."""

    serve: bool = switch(
        "A recommender's cache on each GPU, not training; --serve --help.", listed_after="by"
    )

    def require_serving(self) -> None:
        """Raises InputError where one is said without `--serve`."""
        names = [name for name in flags_of(Cache) if getattr(self, name) is not None]
        if names and not self.serve:
            problems = [Problem(option_word(name), "goes with --serve") for name in names]
            raise InputError("flags of serving without `--serve`", problems=problems)


@as_keywords(CacheOptions)
def plan_cache(options: CacheOptions) -> ServedAnswer:
    """Plan the cache of every GPU: of a size (`8GiB`; all that is left of a GPU unless said), or the smallest with a
    share of hits (`95%`).

    `zipf` is the exponent of tables that say nothing of their accesses, `precision` the type of their vectors, `policy`
    `hottest` or `lru`, `profile` what was measured (the nearest of the catalogue unless said), `drive_rate` what the
    drives of a node read where host memory does not hold all tables (the cluster's own unless said).

    Raises:
        InputError: what was asked is wrong; everything that is, at once.
        InfeasibleError: the cache does not fit the GPU, or the tables the host.
    """
    family: ServesCaches = verbs_with("plan_cache")
    return family.plan_cache(options)


def answer_serving(options: PlanFlags, output: Output) -> None:
    """Plan the cache and print."""
    from meshwright.inputs.questions import single_count

    _require_meant(options)
    output.check_places(options.out)
    count = single_count(options.gpus)
    if options.gpus is not None and count is None:
        raise InputError(f"--gpus: `{options.gpus}` is not one number of GPUs", hint="--serve asks about one")
    family: ServesCaches = verbs_with("plan_cache")
    answer = family.plan_cache(replace(part_of(options, CacheOptions), gpus=count))
    output.assumed(answer.assumptions)
    output.show(answer, options.out)
    output.wrote(options.out, lambda file: f"meshwright serve {file}, meshwright plot cache {file}")


def _require_meant(options: PlanFlags) -> None:
    nouns = {"MODEL": options.model, "CLUSTER": options.cluster}
    if missing := [noun for noun, value in nouns.items() if not value]:
        raise InputError(
            "nothing to serve",
            problems=[Problem(noun, "missing") for noun in missing],
            hint="meshwright plan recommender.yaml dgx-h100 --gpus 1 --serve --cache 8GiB",
        )
    strange = [
        name for name in given_flags(options) if name not in ("gpus", "precision", "profile", "host_memory")
    ]
    strange += [name for name in ("top", "replay") if getattr(options, name) is not None]
    if strange:
        raise InputError(
            "`--serve` takes fewer flags",
            problems=[Problem(option_word(name), "means nothing beside --serve") for name in strange],
        )
