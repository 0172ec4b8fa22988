"""Does the doctor find what is slow, and nothing else? Trials on processes of this machine.

    python benchmarks/doctor/run.py OUT.csv [--trials 20] [--processes 4] [--seed 0] [--kinds even,process,pair]

In every trial the same processes are examined as `meshwright doctor` examines them, after what it times was wrapped:

    even       nothing is wrapped: nothing may be found
    process    a rank drawn at random takes 30 % longer for all that it does alone: it is named, and no other
    pair       messages of a pair drawn at random come 2 ms later each way: the pair is named, and no other

Writes a row for each trial: what was slowed, what was found, whether it was right, seconds, the noise of each check.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from doctor.slowing import delayed_pair, slow_process

from cost_models.files.whole import write_whole
from executor.doctor.examine import Examination, Judgement, judge
from executor.doctor.measuring import rounds_of_pairs
from executor.launch.environment import on_this_machine, worker_environment
from meshwright.terminal.output import as_csv
from meshwright.verbs.doctor import sentence

KINDS = ("even", "process", "pair")
SHARE, DELAY = 0.3, 2e-3


def main() -> None:
    """All trials; exits 1 where one was wrong."""
    options = _options()
    if options.rank is not None:
        _work(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--folder", folder]
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank)], env=on_this_machine(worker_environment()))
            for rank in range(options.processes)
        ]
        codes = [rank.wait() for rank in ranks]
    sys.exit(max(codes))


def _work(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from executor.doctor.measuring import as_it_is, examine_here

    torch.set_num_threads(1)
    meet = Path(options.folder, "rendezvous").as_uri()
    dist.init_process_group("gloo", init_method=meet, rank=options.rank, world_size=options.processes)
    rng = random.Random(options.seed)  # the same on every rank
    pairs = [pair for pairs in rounds_of_pairs(options.processes) for pair in pairs]
    rows: list[dict[str, object]] = []
    for trial in range(options.trials):
        for kind in options.kinds.split(","):
            rank, pair = rng.randrange(options.processes), rng.choice(pairs)
            doomed = {"even": (), "process": (rank,), "pair": pair}[kind]
            wrap = {
                "even": as_it_is,
                "process": slow_process(rank, SHARE),
                "pair": delayed_pair(pair, DELAY),
            }[kind]
            seen = examine_here(torch.device("cpu"), wrap)
            rows.append(_row(trial, kind, doomed, seen, judge(seen)))
            if options.rank == 0:
                print(json.dumps(rows[-1]), flush=True)
                write_whole(options.out, as_csv(rows))
    dist.destroy_process_group()
    if options.rank == 0 and not all(row["right"] for row in rows):
        sys.exit(1)


def _row(
    trial: int, kind: str, doomed: tuple[int, ...], seen: Examination, judged: Judgement
) -> dict[str, object]:
    noise = {f"noise_{one.check}": round(one.noise, 4) for one in judged.checks if one.noise is not None}
    return {
        "trial": trial,
        "kind": kind,
        "slowed": "-".join(map(str, doomed)),
        "found": "; ".join(sentence(one) for one in judged.findings),
        "right": {one.ranks for one in judged.findings} == ({doomed} if doomed else set()),
        "seconds": round(seen.seconds, 2),
        "load": round(os.getloadavg()[0], 1),
        **noise,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
