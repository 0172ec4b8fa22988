"""The store of ranks that meet on this machine's loopback address: it listens nowhere else."""

from __future__ import annotations

import os
import socket

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from executor.launch.environment import LOOPBACK


def store_here(rank: int, ranks: int) -> dist.Store | None:  # type: ignore[name-defined]
    """A store on loopback for ranks that meet there; None where they meet elsewhere or share torchrun's own store."""
    if os.environ.get("MASTER_ADDR") != LOOPBACK or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    port = int(os.environ["MASTER_PORT"])
    listening = None if rank else socket.create_server((LOOPBACK, port))
    return dist.TCPStore(  # type: ignore[attr-defined]
        LOOPBACK,
        port,
        ranks,
        is_master=rank == 0,
        timeout=default_pg_timeout,
        multi_tenant=True,
        master_listen_fd=None if listening is None else listening.detach(),
    )
