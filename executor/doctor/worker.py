"""One process of an examination: `python -m executor.doctor.worker --rank 0 --world 2 --folder DIR --device cpu`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist

from executor.doctor.measuring import Wrap, as_it_is, examine_here
from executor.launch.orphans import end_with_parent


def main(wrap: Wrap = as_it_is) -> None:
    """Measure with the others; rank 0 writes what all of them found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    end_with_parent()
    torch.set_num_threads(1)
    device = torch.device(f"cuda:{given.rank}" if given.device == "cuda" else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=(given.folder / "rendezvous").as_uri(),
        rank=given.rank,
        world_size=given.world,
    )
    seen = examine_here(device, wrap)
    (given.folder / f"rank-{given.rank}.json").write_text(seen.model_dump_json(), "utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
