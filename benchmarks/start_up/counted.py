"""Requests to the store and calls that make groups, of one rank's start: `python counted.py [--seconds]`.

    small   every rank of 2, 4 and 8 starts for real, gloo and TCPStore on this machine: joins, makes the groups of its
            layout and that of checkpoints, and all ranks reduce and gather once over each
    large   one rank of up to 16,384 makes the same groups alone on a store of its own: none of them asks for others
            before it speaks with them
    before  a group for each group of every axis, made by all ranks, each of which connects to all others of its own
    model   `cost_models.reliability`, and the seconds of the store that follow, beside those before

Requests are counted, not timed. `--seconds` times a request: CPU seconds of the process that serves the store.
"""

from __future__ import annotations

import argparse
import collections
import csv
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
import torch.distributed as dist

from cost_models.axes.layout import Layout, parse_layout
from cost_models.reliability import group_sizes, requests, store_seconds
from executor.mesh import group_beside, make_mesh, parameter_places

HERE = Path(__file__).parent
SMALL = {2: "dp2 zero1 mbs1", 4: "tp2 dp2 zero1 mbs1", 8: "tp2 pp2 dp2 zero1 mbs1"}
LARGE = {
    64: "tp8 dp8 zero1 mbs1",
    1024: "tp8 pp4 dp32 zero1 mbs1",
    2048: "tp8 pp8 dp32 zero1 mbs1",
    4096: "tp8 pp8 dp64 zero1 mbs1",
    16384: "tp8 pp16 dp128 zero1 mbs1",
}
REQUESTS = 20_000


class CountingStore(dist.Store):
    """Counts what is asked of another store."""

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self.inner = inner
        self.asked: collections.Counter[str] = collections.Counter()

    def _ask(self, what: str, *arguments: Any) -> Any:
        self.asked[what] += 1
        return getattr(self.inner, what)(*arguments)

    def set(self, *arguments: Any) -> Any:
        return self._ask("set", *arguments)

    def get(self, *arguments: Any) -> Any:
        return self._ask("get", *arguments)

    def add(self, *arguments: Any) -> Any:
        return self._ask("add", *arguments)

    def wait(self, *arguments: Any) -> Any:
        return self._ask("wait", *arguments)

    def check(self, *arguments: Any) -> Any:
        return self._ask("check", *arguments)

    def compare_set(self, *arguments: Any) -> Any:
        return self._ask("compare_set", *arguments)

    def delete_key(self, *arguments: Any) -> Any:
        return self._ask("delete_key", *arguments)

    def has_extended_api(self) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        self.inner.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=60)

    def clone(self) -> CountingStore:
        return self


def start(layout: Layout, rank: int, store: dist.Store, *, speak: bool) -> tuple[int, int, int]:
    """(requests while groups are made, while each is used once, calls that made groups)."""
    counted = CountingStore(store)
    made = mock.Mock(wraps=dist.new_group)
    dist.init_process_group("gloo", store=counted, rank=rank, world_size=layout.num_gpus)
    with mock.patch.object(dist, "new_group", made):
        mesh = make_mesh(layout, "cpu")
        groups = [None, group_beside(mesh, "shard"), dist.new_group(backend="gloo")]
    groups += [mesh[axis].get_group() for axis in mesh.mesh_dim_names]
    making = counted.asked.total()
    if speak:
        one = torch.ones(64)
        for group in groups:
            dist.all_reduce(one, group=group)
            dist.all_gather([torch.empty(64) for _ in range(dist.get_world_size(group))], one, group=group)
        dist.barrier()
    return making, counted.asked.total() - making, made.call_count


def groups_of_all(layout: Layout) -> int:
    """Groups of all axes of the mesh, which a mesh of torch makes without NCCL's splits."""
    places = parameter_places(layout)
    return sum(layout.num_gpus // size for size in places.shape)


def one_small(rank: int, ranks: int, port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, ranks, is_master=rank == 0, timeout=timedelta(seconds=60))
    print(*start(parse_layout(SMALL[ranks]), rank, store, speak=True), flush=True)
    store.add("ended", 1)
    while rank == 0 and store.add("ended", 0) < ranks:
        time.sleep(0.05)
    os._exit(0)


def small(ranks: int) -> tuple[int, int, int]:
    """The most of any rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    words = [sys.executable, __file__, "--ranks", str(ranks), "--port", str(port), "--rank"]
    started = [
        subprocess.Popen([*words, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(ranks)
    ]
    told = [[int(word) for word in process.communicate()[0].split()] for process in started]
    return tuple(max(one) for one in zip(*told, strict=True))  # type: ignore[return-value]


def large(ranks: int) -> tuple[int, int, int]:
    """Of the last rank, which is in the fullest groups as all are."""
    layout = parse_layout(LARGE[ranks])
    try:
        return start(layout, ranks - 1, dist.HashStore(), speak=False)
    finally:
        dist.destroy_process_group()


def seconds_of_request(clients: int) -> float:
    """CPU seconds that the process of a store spends on a request."""
    code = (
        "import sys, torch.distributed as d; store = d.TCPStore('127.0.0.1', int(sys.argv[1]), is_master={});"
        "print('up', flush=True); {}"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    serve = [sys.executable, "-c", code.format(True, "sys.stdin.read()"), port]
    ask = [
        sys.executable,
        "-c",
        code.format(False, f"[store.add('key', 1) for _ in range({REQUESTS})]"),
        port,
    ]
    with subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server_process:
        server_process.stdout.readline()
        spent = psutil.Process(server_process.pid)
        before_it = sum(spent.cpu_times()[:2])
        asking = [subprocess.Popen(ask, stdout=subprocess.DEVNULL) for _ in range(clients)]
        for one in asking:
            one.wait()
        seconds = sum(spent.cpu_times()[:2]) - before_it
        server_process.communicate("")
    return seconds / REQUESTS / clients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", action="store_true")
    for name in ("--rank", "--ranks", "--port"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    if given.rank is not None:
        return one_small(given.rank, given.ranks, given.port)
    if given.seconds:
        for clients in (1, 2, 4, 8):
            print(
                f"{clients} clients: {1e6 * seconds_of_request(clients):.1f} us of the server's CPU a request"
            )
        return None
    columns = ("ranks", "layout", "calls", "calls_before", "making", "speaking", "model", "before")
    columns += ("model_seconds", "before_seconds")
    with (HERE / "counted.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        for known, count in ((SMALL, small), (LARGE, large)):
            for ranks, text in known.items():
                making, speaking, calls = count(ranks)
                layout = parse_layout(text)
                sizes = (*group_sizes(layout), layout.shard_group)  # a group beside that of the shards, too
                now, then = requests(sizes), sum(1 + 2 * size for size in sizes)
                row = (ranks, text, calls, groups_of_all(layout) + 2, making, speaking or "", now, then)
                row += tuple(f"{store_seconds(ranks, asked):.3g}" for asked in (now, then))
                rows.writerow(row)
                print(*row)
    return None


if __name__ == "__main__":
    main()
