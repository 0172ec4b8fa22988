"""TorchRec: export of a sharding to the plan (JSON) that its `DistributedModelParallel` takes, and import
from it.

    whole → table_wise      column → column_wise      row → row_wise      node-row → table_row_wise
    copy → data_parallel    in host memory: kernel fused_uvm, cached: fused_uvm_caching with a load factor

Every table has its `ParameterSharding`: sharding_type, compute_kernel, ranks, and as sharding_spec its shards with
offsets, sizes and placement (torchrec/distributed/types.py of 1.8.0). Rows are cut as TorchRec cuts them: ⌈R / W⌉ for
each rank as long as there are any (torchrec/distributed/sharding_plan.py), `column_wise` into slices of equal width.
TorchRec itself has no file for plans: `executor.torchrec_plan` turns this one into its `ShardingPlan`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError, Problem
from cost_models.files.reading import read_document
from cost_models.specs.recommender.model import RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import FORMS, Form, Option, Sharding, TablePlacement
from planner.formats.exporter import Exported, Exporter

if TYPE_CHECKING:
    from planner.recommender.plan import RecommenderPlan

VERSION = "1.8.0"
MODULE = "embedding_bag_collection"
"""Default path, in the wrapped model, of the module that contains the tables."""

_NAMES = ("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel")
_TYPES: dict[Form, str] = dict(zip(FORMS, _NAMES, strict=True))
_FORMS: dict[str, Form] = {name: form for form, name in _TYPES.items()} | {"table_column_wise": "column"}
_KERNELS = {("device", False): "fused", ("host", False): "fused_uvm", ("host", True): "fused_uvm_caching"}
"""TorchRec's kernel by memory of the rows and whether the GPU caches rows; copies have another kernel."""
MOST_BYTES = 2**28


def export_sharding(plan: RecommenderPlan, name: str = "", partly: bool = False) -> Exported:
    """Export a sharding of embedding tables as a TorchRec sharding plan in JSON.

    Raises:
        InputError: TorchRec cannot shard some tables so; all of them at once.
    """
    model, cluster = plan.model, plan.cluster
    tables = list(zip(model.table_names, model.class_of_table, plan.sharding.tables, strict=True))
    problems = [
        Problem(f"table:{number}", f"`{placed.option}`: {reason}")
        for number, (_, _, placed) in enumerate(tables)
        if (reason := not_in_torchrec(placed.option))
    ]
    counts = Counter(map(_module_name, model.table_names))
    problems += [Problem(name, "is the name of two tables there") for name in counts if counts[name] > 1]
    if problems:
        hint = "plan again with --stack torchrec and without --allow hot: it has whole, column, row, node-row, copy"
        raise InputError(f"TorchRec {VERSION} cannot run this sharding", problems=problems, hint=hint)
    world, local = cluster.num_gpus, cluster.gpus_per_node
    sharded = ((_module_name(name), model.classes[of], placed) for name, of, placed in tables)
    sharding = {name: _parameter(table, placed, world, local) for name, table, placed in sharded}
    fields = {"torchrec": VERSION, "world_size": world, "local_world_size": local, "plan": {MODULE: sharding}}
    remarks = [f"tables are those of the module `{MODULE}` of the model that is wrapped"]
    if dotted := next((name for name in model.table_names if "." in name), ""):
        words = f"table `{dotted}` is called `{_module_name(dotted)}` there"
        remarks.append(f"{words}, as names of modules have no dot")
    if any(placed.option.cached for _, _, placed in tables):
        cache = "TorchRec's cache, which keeps rows used last, not those used most"
        remarks.append(f"`cached` is a load factor of {cache}")
    return Exported(text=json.dumps(fields, indent=1) + "\n", remarks=tuple(remarks))


def import_sharding(path: str | Path, model: RecommenderSpec) -> tuple[Sharding, int]:
    """Read a TorchRec sharding plan as a sharding of the model's tables, with the number of GPUs.

    Raises:
        InputError: it cannot be read, names other tables than the model, or shards them as nothing here does; all
            problems at once.
    """
    value = read_document(path, most_bytes=MOST_BYTES).value
    problems: list[Problem] = []
    try:
        world, local = int(value["world_size"]), int(value["local_world_size"])
        tables = {name: one for module in value["plan"].values() for name, one in module.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        hint = "it has `world_size`, `local_world_size` and `plan`"
        raise InputError(f"`{path}` is no sharding plan", hint=hint) from None
    if world < 1 or local < 1 or world % local:
        raise InputError(f"`{path}` has {world} ranks in nodes of {local}")
    placements: list[TablePlacement] = []
    for name, number in zip(model.table_names, model.class_of_table, strict=True):
        table_name = name if name in tables else _module_name(name)
        if table_name not in tables:
            problems.append(Problem(name, "is a table of the model, and not of the plan"))
            continue
        try:
            placements.append(_placement(tables[table_name], model.classes[number], world, local))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            reason = str(error) if type(error) is ValueError else ""
            problems.append(Problem(name, reason or "is not written as TorchRec's ParameterSharding"))
    unknown = tables.keys() - {*model.table_names, *map(_module_name, model.table_names)}
    problems += [Problem(name, "is a table of the plan, and not of the model") for name in unknown]
    if problems:
        raise InputError(f"`{path}` does not shard `{model.name}`", problems=problems)
    return Sharding(tuple(placements)), world


def _module_name(name: str) -> str:
    """Name of a table in TorchRec, where tables are torch modules, whose names have no dot."""
    return name.replace(".", "_")


def not_in_torchrec(option: Option) -> str:
    """Reason why TorchRec cannot shard a table with this option; empty if it can."""
    if option.hot:
        return "it has no copies of the hot rows of a table that is sharded otherwise"
    if option.form in ("row", "node-row") and option.shards > 1:
        return "it cuts rows over all ranks, or over those of one node"
    if option.tier == "host" and option.form == "copy":
        return "its copies are on the device"
    return ""


def _parameter(table: TableSpec, placement: TablePlacement, world: int, local: int) -> dict[str, Any]:
    """TorchRec's ParameterSharding of one table, as a dictionary."""
    option, ranks = placement.option, _ranks(placement, world, local)
    kernel = "dense" if option.form == "copy" else _KERNELS[option.tier, option.cached > 0]
    shards = zip(_shards(table, option.form, len(ranks)), ranks, strict=True)
    placed_shards = [shard | {"placement": f"rank:{rank}/cuda:{rank % local}"} for shard, rank in shards]
    fields: dict[str, Any] = {"sharding_type": _TYPES[option.form], "compute_kernel": kernel, "ranks": ranks}
    fields["sharding_spec"] = None if option.form == "copy" else {"shards": placed_shards}
    if option.cached:
        fields["cache_params"] = {"load_factor": option.cached}
    return fields


def _ranks(placement: TablePlacement, world: int, local: int) -> list[int]:
    """Ranks that have the shards of one table."""
    if placement.option.form in ("row", "copy"):
        return list(range(world))
    if placement.option.form == "node-row":
        return [placement.at[0] * local + one for one in range(local)]
    return list(placement.at)


def _shards(table: TableSpec, form: Form, count: int) -> list[dict[str, Any]]:
    """Offset and size of each of `count` shards of a table."""
    rows, width = -(-table.rows // count), table.width // count
    if form in ("row", "node-row"):
        starts = [min(shard * rows, table.rows) for shard in range(count)]
        cuts = [([start, 0], [min(rows, table.rows - start), table.width]) for start in starts]
    else:
        cuts = [([0, shard * width], [table.rows, width]) for shard in range(count)]
    return [{"shard_offsets": offsets, "shard_sizes": sizes} for offsets, sizes in cuts]


def _placement(fields: dict[str, Any], table: TableSpec, world: int, local: int) -> TablePlacement:
    """Sharding option and places of one table, from TorchRec's ParameterSharding. Raises ValueError with the
    reason if no option here shards in that way."""
    form = _FORMS.get(fields["sharding_type"])
    ranks = [int(rank) for rank in fields["ranks"] or ()]
    if form is None:
        raise ValueError(f"`{fields['sharding_type']}` is no way to shard that is known here")
    if any(not 0 <= rank < world for rank in ranks):
        raise ValueError(f"has ranks beyond 0 to {world - 1}")
    kernel = fields["compute_kernel"]
    if kernel not in ("dense", *_KERNELS.values()):
        raise ValueError(f"kernel `{kernel}` is not known here")
    if form == "column" and len(ranks) == 1:
        form = "whole"
    cache = fields.get("cache_params") or {}
    cached = float(cache.get("load_factor") or 0.2) if kernel == "fused_uvm_caching" else 0.0
    shards, on_host = len(ranks) if form == "column" else 1, "uvm" in kernel and form != "copy"
    at = tuple(ranks) if form in ("whole", "column") else ()
    if form == "node-row":
        at = (ranks[0] // local,)
    placement = TablePlacement(Option(form, shards, tier="host" if on_host else "device", cached=cached), at)
    spec = fields.get("sharding_spec")
    if spec is not None and form != "copy":
        cuts = [{name: shard[name] for name in ("shard_offsets", "shard_sizes")} for shard in spec["shards"]]
        if cuts != _shards(table, form, len(_ranks(placement, world, local))):
            raise ValueError(f"has shards that are no equal cut of {table.rows:,} rows of {table.width}")
    return placement


EXPORTER = Exporter(export_sharding, "recommender-plan", "shardings of recommenders")
