"""Environment of worker processes: imports, one thread each, an allocator that keeps pages, loopback; their end.

Workers are started with `python -m`, which would import from the current directory first: a `yaml.py` that lies there
would run in every rank. They import from where this process's packages lie, and never from the current directory.

CUDA's allocator grows its segments instead of adding others, so that less is lost between them.

By default glibc hands large freed blocks back to the kernel, so activations are faulted in page by page again on every
step: on a virtual machine a fresh 4 MiB tensor takes twenty times as long to fill as a kept one. Keeping freed memory
and asking for huge pages makes CPU runs faster and repeatable. Only blocks of `_MMAP_THRESHOLD` bytes and more, as
weights gathered for a while, go back: among small ones they leave gaps, for which a rank of GPT-2 under ZeRO-3 held 2.6
GB where 1.2 were of tensors. Ignored where the C library is not glibc, and harmless with CUDA.

Ranks of one machine meet on its loopback address, which no other machine reaches: stores of keys, gloo and NCCL do not
authenticate, and listen on all addresses, or on the one of the host's name, unless told otherwise.

A process ends when its parent is gone, so that a launcher that is killed leaves no ranks behind.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from executor.clock import BOOT_DATE, boot_date
from executor.run_config import ALLOCATOR

LOOPBACK = "127.0.0.1"
_ALLOCATOR_BEFORE = "PYTORCH_CUDA_ALLOC_CONF"
"""Older name of the variable `ALLOCATOR`, which torch still obeys."""
_NETWORKS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_INSTALLED = ("site-packages", "dist-packages")
_MMAP_THRESHOLD = 8 << 20
_KEEP_PAGES = {
    "glibc.malloc.mmap_threshold": str(_MMAP_THRESHOLD),
    "glibc.malloc.trim_threshold": str(1 << 40),
    "glibc.malloc.hugetlb": "1",
}


def worker_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a new process: `base` (default: this process's), with defaults for variables that it lacks.

    It must be set before the process starts: the C library reads it once, at start-up.
    """
    environment = dict(os.environ if base is None else base)
    environment |= _imports(environment)
    environment.setdefault("OMP_NUM_THREADS", "1")
    if not {ALLOCATOR, _ALLOCATOR_BEFORE} & environment.keys():
        environment[ALLOCATOR] = "expandable_segments:True"
    environment[PARENT], environment[BOOT_DATE] = str(os.getpid()), str(boot_date())
    user_tunables = environment.get("GLIBC_TUNABLES", "")
    user_names = {setting.partition("=")[0] for setting in user_tunables.split(":")}
    added = [f"{name}={value}" for name, value in _KEEP_PAGES.items() if name not in user_names]
    environment["GLIBC_TUNABLES"] = ":".join(filter(None, [user_tunables, *added]))
    return environment


def _imports(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables by which a new Python imports our packages, and nothing of the current directory.

    An empty entry of PYTHONPATH is the current directory. What is installed is found without PYTHONPATH, before which
    Python's own modules would lose their place.
    """
    home = Path(__file__).resolve().parents[2]
    ours = [] if home.name in _INSTALLED else [str(home)]
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    other_paths = [path for path in paths if path not in ("", *ours)]
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([*ours, *other_paths])}


@contextmanager
def imports_of_workers() -> Iterator[None]:
    """Context manager in which `multiprocessing` starts processes that import as workers do."""
    ours = _imports(os.environ)
    outer_values = {name: os.environ[name] for name in ours if name in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours.keys() - outer_values.keys():
            del os.environ[name]
        os.environ.update(outer_values)


def on_this_machine(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment of ranks that are all on this machine: they use loopback unless it names a network."""
    loopback = [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.family == socket.AF_INET and address.address == LOOPBACK for address in addresses)
    ]
    return {**(dict.fromkeys(_NETWORKS, loopback[0]) if loopback else {}), **environment}


PARENT = "MESHWRIGHT_PARENT"
"""Environment variable: id of the process that started this one."""
_POLL_SECONDS = 0.5


def end_with_parent() -> None:
    """Start a thread that sends this process SIGTERM as soon as its parent is gone.

    An orphan gets another parent, on every Unix. A thread looks for that, as the process may wait inside a collective.
    """
    parent = int(os.environ.get(PARENT, os.getppid()))

    def look() -> None:
        """Poll for the parent's end, then send this process SIGTERM."""
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=look, name="orphan", daemon=True).start()
