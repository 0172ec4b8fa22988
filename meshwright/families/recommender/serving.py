"""Which rows of a recommender's tables every GPU caches while serving, what that hits and how long answers take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files.loading import read_once
from cost_models.files.recommenders import resolve_recommender
from cost_models.recommender.accesses import POLICIES
from cost_models.recommender.serving import ServingQuestion
from cost_models.specs.cluster import MixedCluster
from cost_models.specs.recommender.model import RecommenderSpec, TableSpec
from cost_models.specs.recommender.training import ELEMENT_BYTES
from cost_models.units import parse_bandwidth, parse_bytes
from meshwright.families.recommender.served import ServedRecommender
from meshwright.inputs.problems import Problems
from meshwright.inputs.questions import cluster_of, read_host_memory, with_host_memory
from meshwright.verbs.plan_cache import CacheOptions
from planner import serving

BATCHES = (64, 256, 1024, 4096, 16384)
"""Samples of a batch, where nobody says."""
_SHARE = re.compile(r"\d{1,3}(\.\d+)?%?|0?\.\d+", re.ASCII)


def plan_cache(options: CacheOptions) -> ServedRecommender:
    """Plan the cache of every GPU. Raises InputError, InfeasibleError."""
    problems = Problems()
    spec = problems.read(lambda: _model(options.model))
    found = problems.read(lambda: cluster_of(options.cluster, options.gpus))
    memory = problems.read(lambda: read_host_memory(options.host_memory))
    size = problems.read(lambda: _amount(options.cache, parse_bytes, "--cache"))
    rate = problems.read(lambda: _amount(options.drive_rate, parse_bandwidth, "--drive-rate"))
    share = problems.read(lambda: _share(options.hits))
    batches = problems.read(lambda: read_batches(options.batch, BATCHES))
    problems.read(lambda: _require_known(options.precision, tuple(ELEMENT_BYTES), "--precision"))
    problems.read(lambda: _require_known(options.policy, POLICIES, "--policy"))
    problems.read(lambda: _require_one(options.cache, options.hits))
    problems.require()
    assert spec is not None
    assert found is not None
    assert batches is not None
    held = with_host_memory(found, memory)
    if isinstance(held, MixedCluster):
        raise InputError(f"`{held.name}` has several kinds of GPU; a cache is planned for one")
    spec, silent = _with_exponent(spec, options.zipf)
    question = ServingQuestion(
        model=spec,
        cluster=held,
        table_dtype=options.precision or "fp32",  # type: ignore[arg-type]
        policy=options.policy or "hottest",  # type: ignore[arg-type]
        batches=batches,
        drive_rate=rate or (held.drive.read if held.drive else None),
    )
    question = serving.with_rates(question, profile=options.profile)
    plan = serving.plan_cache(question, cache_bytes=size, hits=share)
    return ServedRecommender(plan=plan, asked_hits=share, assumptions=silent)


def _model(model: str | Path | RecommenderSpec) -> RecommenderSpec:
    if isinstance(model, RecommenderSpec):
        return model
    return resolve_recommender(read_once(str(model)))


def _with_exponent(model: RecommenderSpec, zipf: float | None) -> tuple[RecommenderSpec, tuple[str, ...]]:
    """The model, with the exponent for tables that say nothing of their accesses; and what was assumed of those."""
    silent = [one.name for one in model.classes if one.zipf is None and not one.histogram]
    if not silent:
        return model, ()
    which = (
        f"{len(silent)} of {len(model.classes)} classes of tables" if len(silent) > 1 else f"`{silent[0]}`"
    )
    if zipf is None:
        return model, (f"all rows of {which} are used alike, as the model does not say; --zipf 1.05 would",)

    def said(tables: tuple[TableSpec, ...]) -> tuple[TableSpec, ...]:
        return tuple(
            TableSpec(**one.model_dump() | {"zipf": zipf}) if one.name in silent else one for one in tables
        )

    fields = {"tables": said(model.tables), "wide": said(model.wide)}
    return model.model_copy(update=fields), (f"rows of {which} are used by Zipf's law, exponent {zipf:g}",)


def _amount(said: str | float | None, parse: object, flag: str) -> float | None:
    if said is None:
        return None
    try:
        value = float(parse(said)) if isinstance(said, str) else float(said)  # type: ignore[operator]
    except ValueError as error:
        raise InputError("an amount cannot be read", problems=[Problem(flag, str(error))]) from None
    if not value > 0:
        raise InputError("an amount cannot be read", problems=[Problem(flag, "must be above zero")])
    return value


def _share(said: str | float | None) -> float | None:
    """Read `95%` or 0.95."""
    if said is None:
        return None
    text = str(said).strip()
    share = -1.0
    if _SHARE.fullmatch(text) or text in {"0", "1"}:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < share <= 1:
        what = f"`{printable(text)}` is no share of accesses; write it like `95%`"
        raise InputError("hits cannot be read", problems=[Problem("--hits", what)])
    return share


def read_batches(said: str | int | Sequence[int] | None, usual: tuple[int, ...]) -> tuple[int, ...]:
    """Read `64,1024`; `usual` where nobody says. Raises InputError."""
    if said is None:
        return usual
    words = (
        [str(said)] if isinstance(said, int) else said.split(",") if isinstance(said, str) else map(str, said)
    )
    sizes = [word.strip() for word in words]
    if not sizes or not all(word.isdecimal() and 0 < int(word) <= 10**9 for word in sizes):
        what = f"`{printable(str(said))}` is no number of samples; write it like `64,1024`"
        raise InputError("batches cannot be read", problems=[Problem("--batch", what)])
    return tuple(sorted({int(word) for word in sizes}))


def _require_known(said: str | None, known: Sequence[str], flag: str) -> None:
    if said is not None and said not in known:
        what = f"`{printable(said)}` is not one of {', '.join(known)}"
        raise InputError("a choice is unknown", problems=[Problem(flag, what)])


def _require_one(cache: object, hits: object) -> None:
    if cache is not None and hits is not None:
        raise InputError("`--cache` says how large the cache is, `--hits` asks for it", hint="leave out one")
