"""What `ibnetdiscover` prints of a fabric, written after its manual page (infiniband-diags, TOPOLOGY FILE FORMAT)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


def ibnetdiscover(cables: Iterable[tuple[str, str, str]]) -> str:
    """Blocks of switches and adapters for cables (device, device, `4xNDR`); hosts' devices are `host mlx5_0`."""
    ports: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for one, other, speed in cables:
        at = len(ports[one]) + 1, len(ports[other]) + 1
        ports[one].append((other, at[1], speed))
        ports[other].append((one, at[0], speed))
    guid = {
        name: f"{'H' if ' ' in name else 'S'}-{number:016x}" for number, name in enumerate(ports, start=0xA0)
    }
    lines = ["#", "# Topology file: generated on Wed Nov 25 10:00:00 2026", "#", ""]
    for name, own in ports.items():
        host = guid[name].startswith("H")
        kind = "caguid" if host else "switchguid"
        lines += ["vendid=0x2c9", "devid=0xd2f2", f"{kind}=0x{guid[name][2:]}({guid[name][2:]})"]
        word, more = ("Ca", "") if host else ("Switch", " enhanced port 0 lid 1 lmc 0")
        lines.append(f'{word}\t{len(own)} "{guid[name]}"\t\t# "{name}"{more}')
        for number, (other, port, speed) in enumerate(own, start=1):
            mine = f"({guid[name][2:]})" if host else ""
            told = f'lid 4 lmc 0 "{other}" lid 1 {speed}' if host else f'"{other}" lid 4 {speed}'
            lines.append(f'[{number}]{mine}\t"{guid[other]}"[{port}]\t\t# {told}')
        lines.append("")
    return "\n".join(lines)
