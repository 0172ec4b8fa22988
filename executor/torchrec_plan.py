"""Reads a sharding that `meshwright export --to torchrec` wrote, as the plan of TorchRec's DistributedModelParallel.

    model = DistributedModelParallel(module, plan=read_sharding_plan("sharding.json"), sharders=..., device=...)

TorchRec is imported when this is called: it is no dependency.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cost_models.files.reading import parse_json, read_text
from planner.formats.torchrec import MOST_BYTES


def read_sharding_plan(path: str | Path, *, device: str = "cuda", module: str | None = None) -> Any:
    """TorchRec's `ShardingPlan` from a file; with `device` "cpu" every shard is in memory of the CPU.

    `module` is the path of the tables' module in the wrapped model, where it is not the file's.
    """
    from torch.distributed._shard.metadata import ShardMetadata
    from torchrec.distributed.types import (  # type: ignore[import-not-found]
        CacheParams,
        EmbeddingModuleShardingPlan,
        EnumerableShardingSpec,
        ParameterSharding,
        ShardingPlan,
    )

    def parameter(fields: dict[str, Any]) -> Any:
        """TorchRec's sharding of one table."""
        spec, cache = fields["sharding_spec"], fields.get("cache_params")
        names = ("sharding_type", "compute_kernel", "ranks")
        return ParameterSharding(
            **{name: fields[name] for name in names},
            sharding_spec=spec and EnumerableShardingSpec([shard(one) for one in spec["shards"]]),
            cache_params=cache and CacheParams(load_factor=cache["load_factor"]),
        )

    def shard(fields: dict[str, Any]) -> ShardMetadata:
        """Torch's metadata of one shard."""
        rank = fields["placement"].partition("/")[0]
        placement = fields["placement"] if device == "cuda" else f"{rank}/{device}"
        return ShardMetadata(
            shard_offsets=fields["shard_offsets"], shard_sizes=fields["shard_sizes"], placement=placement
        )

    modules = parse_json(read_text(path, most_bytes=MOST_BYTES), source=str(path)).value["plan"]
    return ShardingPlan(
        plan={
            name if module is None else module: EmbeddingModuleShardingPlan(
                {table: parameter(fields) for table, fields in tables.items()}
            )
            for name, tables in modules.items()
        }
    )
