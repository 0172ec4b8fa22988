"""Reads exported shardings with TorchRec: its own cut of every table, pooled vectors of DistributedModelParallel.

Runs in an environment with TorchRec; MESHWRIGHT names the checkout.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TABLES = (("a_0", 1001), ("a_1", 1001), ("b", 7), ("c", 5000))
SAMPLES = 8


def reader() -> Any:
    """`executor/torchrec_plan.py` of the checkout, alone."""
    path = Path(os.environ["MESHWRIGHT"]) / "executor/torchrec_plan.py"
    spec = importlib.util.spec_from_file_location("torchrec_plan", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_random(folder: Path) -> None:
    """Every table of every random plan is cut as TorchRec's planner would cut it."""
    from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets

    equal: Counter[str] = Counter()
    for path in sorted(folder.glob("random*.json")):
        rows = [int(count) for count in path.with_suffix(".rows").read_text().split()]
        tables = reader().read_sharding_plan(path).plan["embedding_bag_collection"]
        for place, count in enumerate(rows):
            one = tables[f"t{place}"]
            if one.sharding_spec is None:
                equal[one.sharding_type] += 1
                continue
            sizes, offsets = calculate_shard_sizes_and_offsets(
                torch.empty(count, 64, device="meta"), 16, 8, one.sharding_type, 32
            )
            shards = one.sharding_spec.shards
            assert [list(shard.shard_sizes) for shard in shards] == [list(size) for size in sizes], path
            assert [list(shard.shard_offsets) for shard in shards] == [list(at) for at in offsets], path
            assert [shard.placement.rank() for shard in shards] == one.ranks, path
            equal[one.sharding_type] += 1
    total = sum(equal.values())
    print(
        f"random plans: {total} tables cut as TorchRec cuts them: {dict(sorted(equal.items()))}", flush=True
    )


def worker(rank: int, path: str, port: int, results: Any) -> None:
    """One of two processes: pooled vectors of the sharded tables beside those of whole ones."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    def collection(device: str) -> EmbeddingBagCollection:
        configs = [
            EmbeddingBagConfig(name=name, embedding_dim=128, num_embeddings=rows, feature_names=[name])
            for name, rows in TABLES
        ]
        return EmbeddingBagCollection(device=torch.device(device), tables=configs)

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding_bag_collection = collection("meta")

        def forward(self, ids: KeyedJaggedTensor) -> Any:
            return self.embedding_bag_collection(ids)

    model = DistributedModelParallel(
        Wrapped(),
        plan=reader().read_sharding_plan(path, device="cpu"),
        sharders=[EmbeddingBagCollectionSharder()],
        device=torch.device("cpu"),
    )
    torch.manual_seed(0)
    plain = collection("cpu")
    with torch.no_grad():
        for name, held in model.state_dict().items():
            whole = plain.embedding_bags[name.split(".")[-2]].weight
            if not hasattr(held, "local_shards"):
                held.copy_(whole)
                continue
            for shard in held.local_shards():
                (row, column), (rows, width) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.copy_(whole[row : row + rows, column : column + width])
    draw = torch.Generator().manual_seed(rank)
    lengths = torch.randint(0, 4, (len(TABLES), SAMPLES), generator=draw)
    ids = [
        torch.randint(0, rows, (int(of.sum()),), generator=draw)
        for (_, rows), of in zip(TABLES, lengths, strict=True)
    ]
    batch = KeyedJaggedTensor([name for name, _ in TABLES], torch.cat(ids), lengths=lengths.flatten())
    sharded, together = model(batch).wait(), plain(batch)
    apart = torch.stack([(sharded[name] - together[name]).abs().max() for name, _ in TABLES]).max().detach()
    dist.all_reduce(apart, op=dist.ReduceOp.MAX)
    if rank == 0:
        results.put(float(apart))
    dist.destroy_process_group()


def main(folder: Path) -> None:
    """Check all files that `write.py` wrote."""
    check_random(folder)
    for place, name in enumerate(("whole", "column", "row", "copy", "mixed")):
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(worker, args=(str(folder / f"{name}.json"), 29600 + place, results), nprocs=2)
        print(f"{name}: pooled vectors of two processes differ by {results.get():.1e} at most", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
