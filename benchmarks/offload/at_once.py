"""Updates of blocks on the host: one after another with all threads, or several at once with a share each: `OUT.csv`.

The same blocks are updated in turn by one worker with n threads, as the executor does, and by n workers with one thread
each, as STRONGHOLD does (Sun et al. 2022, section III-E), in alternating rounds. CPU seconds of the process are what
all threads work; where a machine is shared, wall seconds are not of use. `late` is what is left after the last block's
gradient came: one update with its threads, if those before it are over.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

os.environ["OMP_WAIT_POLICY"] = "passive"  # threads that wait do not work

import torch

from cost_models.files.whole import write_whole
from executor.microbenchmarks.links import BLOCKS, blocks_of
from meshwright.terminal.output import as_csv

ROUNDS, UPDATED = 9, 1 << 24


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    threads, rows = options.threads, []
    ways = {"one after another": (1, threads), "at once": (threads, 1)}
    pools = {
        name: ThreadPoolExecutor(workers, name, torch.set_num_threads, (own,))
        for name, (workers, own) in ways.items()
    }
    for parameters in (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22):
        blocks, repeats = blocks_of(parameters), max(1, UPDATED // (BLOCKS * parameters))
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
        for _ in range(ROUNDS + 1):
            for name, pool in pools.items():
                cpu, wall = cpu_seconds(), time.perf_counter()
                for _ in range(repeats):
                    for done in [pool.submit(block.step) for block in blocks]:
                        done.result()
                cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
                alone = time.perf_counter()
                pool.submit(blocks[-1].step).result()
                found[name].append((cpu, wall, time.perf_counter() - alone))
        for name, (workers, own) in ways.items():
            cpus, walls, lates = zip(*found[name][1:], strict=True)
            updates = BLOCKS * repeats
            rows.append(
                {
                    "parameters": parameters,
                    "way": name,
                    "workers": workers,
                    "threads_each": own,
                    "cpu_us_per_update": round(1e6 * median(cpus) / updates, 1),
                    "least_cpu_us": round(1e6 * min(cpus) / updates, 1),
                    "least_wall_us": round(1e6 * min(walls) / updates, 1),
                    "least_late_us": round(1e6 * min(lates), 1),
                }
            )
            print(rows[-1], flush=True)
    write_whole(options.out, as_csv(rows))


if __name__ == "__main__":
    main()
