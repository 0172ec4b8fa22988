"""Runs torchrun so that it ends with its launcher: `python -m executor.launch.agent ARGUMENTS`.

Where several nodes meet at an address, its store listens at that one; torchrun's own would listen at all of them.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend
from torch.distributed.run import main

from executor.launch.environment import PARENT, end_with_parent


def store_at(host: str, port: int, *, is_master: bool, **how: Any) -> TCPStore:
    """Torch's key-value store, listening at one IP address only. If `host` is a name, which may lead elsewhere on other
    nodes, it listens at all addresses.

    Raises:
        RuntimeError: another process listens there; torchrun then joins that one's store.
    """
    try:
        family = {4: socket.AF_INET, 6: socket.AF_INET6}[ipaddress.ip_address(host).version]
    except ValueError:
        return TCPStore(host, port, is_master=is_master, **how)
    if not is_master:
        return TCPStore(host, port, is_master=False, **how)
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise RuntimeError(str(error)) from error
    return TCPStore(host, port, is_master=True, master_listen_fd=listening.detach(), **how)


if __name__ == "__main__":
    end_with_parent()
    os.environ[PARENT] = str(os.getpid())  # that of the ranks
    c10d_rendezvous_backend.TCPStore = store_at  # type: ignore[attr-defined, assignment]
    main()
