"""Nodes that meet at an address listen there, and nowhere else: stores neither authenticate nor encrypt."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from executor.launch.agent import store_at
from executor.launch.launch import Nodes


def addresses(port: int) -> set[str]:
    """Where this process listens."""
    here = psutil.Process(os.getpid()).net_connections("inet")
    return {one.laddr.ip for one in here if one.laddr.port == port and one.status == psutil.CONN_LISTEN}


def test_the_store_of_several_nodes_listens_where_they_meet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    how = {"multi_tenant": True, "timeout": timedelta(seconds=10)}
    store = store_at("127.0.0.1", port, is_master=True, **how)
    assert addresses(port) == {"127.0.0.1"}
    other = store_at("127.0.0.1", port, is_master=False, **how)
    store.set("key", "value")
    assert other.get("key") == b"value"
    with pytest.raises(RuntimeError, match="in use"):  # torchrun joins it then
        store_at("127.0.0.1", port, is_master=True, **how)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nodes_of_one_machine_stay_on_loopback(host: str) -> None:
    """Their ranks, too."""
    nodes = Nodes(count=2, rendezvous=f"{host}:29500")
    words = nodes.arguments(4, 60.0, Path("out"), Path("logs"))
    assert nodes.here
    assert words[words.index("--rdzv-endpoint") + 1] == "127.0.0.1:29500"
    assert words[words.index("--local-addr") + 1] == "127.0.0.1"
    elsewhere = Nodes(count=2, rendezvous="node0:29500")
    assert not elsewhere.here
    assert "--local-addr" not in elsewhere.arguments(4, 60.0, Path("out"), Path("logs"))
