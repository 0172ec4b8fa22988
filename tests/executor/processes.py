"""A few worker processes for all tests of the executor: they import torch once and stay warm between tests."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import multiprocessing.connection
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

Job = Callable[..., Any]

_PRELOAD = [
    "torch",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "executor.checkpoints.checkpointer",
    "executor.transformer.train",
]
_LONGEST_SECONDS = 120.0
_MOST_JOBS = 100
"""Jobs after which workers are replaced: threads of some process groups outlive them, and wake up now and then."""
_DTENSOR = "torch.distributed.tensor."


class Processes:
    """Runs a module-level function on n ranks of a gloo process group at once."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOAD)
        self._workers: list[tuple[BaseProcess, Connection]] = []
        self._jobs = 0

    def run(self, ranks: int, job: Job, *arguments: Any) -> list[Any]:
        """What `job(*arguments)` returned on every rank; a failure on any of them fails here with its traceback."""
        self._jobs += 1
        if self._jobs % _MOST_JOBS == 0:
            self.stop()
        while len(self._workers) < ranks:
            self._start()
        with tempfile.TemporaryDirectory() as folder:
            pipes = [pipe for _, pipe in self._workers[:ranks]]
            for rank, pipe in enumerate(pipes):
                pipe.send((rank, ranks, Path(folder, "rendezvous").as_uri(), job, arguments))
            waiting = dict(enumerate(pipes))
            results: list[Any] = [None] * ranks
            while waiting:
                ready = multiprocessing.connection.wait(list(waiting.values()), timeout=_LONGEST_SECONDS)
                if not ready:
                    self._fail(f"ranks {sorted(waiting)} did not end within {_LONGEST_SECONDS:.0f} s")
                for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
                    results[rank], failure = waiting.pop(rank).recv()
                    if failure:
                        self._fail(f"rank {rank} failed:\n{failure}")
        return results

    def stop(self) -> None:
        """End every worker."""
        for process, pipe in self._workers:
            with suppress(BrokenPipeError, OSError):
                pipe.send(None)
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        self._workers.clear()

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._workers.append((process, ours))

    def _fail(self, message: str) -> None:
        for process, _ in self._workers:
            process.kill()  # the others may wait for ever inside a collective
        self.stop()
        raise AssertionError(message)


def _serve(pipe: Connection) -> None:
    """The loop of one worker: join a process group, run, leave, answer."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    _freeze()
    seats: object = None
    while (task := pipe.recv()) is not None:
        rank, ranks, rendezvous, job, arguments = task
        if seats != _seats(ranks, arguments):
            seats = _seats(ranks, arguments)
            _forget_meshes()
        try:
            dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
            answer = (job(*arguments), "")
        except BaseException:
            answer = (None, traceback.format_exc())
        with suppress(Exception):
            dist.destroy_process_group()
        pipe.send(answer)


def _seats(ranks: int, arguments: tuple[Any, ...]) -> object:
    """What the groups of a job follow from: its number of ranks and the axes of its plan, where it has one."""
    layout = getattr(arguments[0], "layout", None) if arguments else None
    axes = ("pp", "dp", "cp", "tp", "ep", "etp", "shard", "order")
    if layout is None or isinstance(layout, str):  # a sharding has no mesh
        return ranks, layout
    return ranks, tuple(getattr(layout, axis) for axis in axes)


@functools.cache
def _freeze() -> list[functools._lru_cache_wrapper[Any]]:
    """What DTensor remembers operators in, found once; modules then no longer cost a collection of garbage its time."""
    found = _remembering()
    gc.freeze()
    return found


def _remembering() -> list[functools._lru_cache_wrapper[Any]]:
    """Caches of DTensor among objects that are not frozen."""
    objects = (one for one in gc.get_objects() if type(one) is functools._lru_cache_wrapper)
    return [one for one in objects if str(one.__module__).startswith(_DTENSOR)]


def _forget_meshes() -> None:
    """DTensor remembers what operators return together with the mesh they saw first, and equal meshes are one to it,
    though the groups of the one are gone: no matter where a process has one job, but here it has many. What is
    remembered also keeps the groups of every mesh, and their threads, alive."""
    from torch.distributed.tensor import _redistribute
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    for known in (*_freeze(), *_remembering()):
        known.cache_clear()
    getattr(_redistribute, "_planner_cache", {}).clear()
    gc.collect()
