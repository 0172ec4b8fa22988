"""When nothing fits: the table that no GPU holds, its least shard, and what would hold it; or all tables together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.errors import DoesNotFitError, InputError, Problem
from cost_models.recommender.priced import PricedOptions
from cost_models.specs.recommender.sharding import Option
from cost_models.units import counted, format_bytes
from planner.recommender.search.problem import Problem as PosedProblem


def nothing_left(priced: PricedOptions, tables: Sequence[int]) -> InputError:
    """The error to raise where restrictions leave a table without an option."""
    return InputError(f"restrictions leave no way to hold {priced.name_of(tables[0])}")


def no_option_holds(priced: PricedOptions, rows: Ints, table: int) -> DoesNotFitError:
    """The error to raise where none of the rows of `priced` holds a table."""
    free = _free(priced)
    device = _worst_moment(priced, rows)
    host = _fullest_host(priced, rows)
    over = np.maximum(device - free, 0) + np.maximum(host - priced.host_memory, 0)
    least = int(np.argmin(over))
    option = priced.options[int(rows[least])]
    how = "however it is held" if len(rows) > 1 else f"held as `{option}`"
    room = f"of a GPU's {format_bytes(free)}" if free > 0 else "of a GPU that the dense network fills alone"
    places = [f"{format_bytes(float(device[least]))} {room}"]
    if host[least] > 0:
        places.append(f"{format_bytes(float(host[least]))} of a host's {format_bytes(priced.host_memory)}")
    return DoesNotFitError(
        f"{priced.name_of(table)}, {format_bytes(_table_bytes(priced, rows))}, does not fit, {how}",
        problems=[Problem("least", f"`{option}` needs {' and '.join(places)}")],
        hint="; or ".join(_remedies(priced, rows, device, host, free)),
    )


def _fullest_host(priced: PricedOptions, rows: Ints) -> Array:
    """Host memory that a table in each row takes of the node that has most of it: shards spread evenly."""
    nodes = -(-priced.gpus // priced.gpus_per_node)
    shards = -(-priced.shards[rows] // nodes)
    return priced.everywhere_host_bytes[rows] + shards * priced.shard_host_bytes[rows]


def no_room_for_all(problem: PosedProblem) -> DoesNotFitError:
    """The error to raise where tables fit one by one and not together."""
    priced = problem.priced
    needed = (
        problem.everywhere_full * problem.gpus + problem.shard_full * (problem.shards * problem.span)[:, None]
    )
    least = problem.base_full.sum(axis=0)
    for one, count in enumerate(problem.counts.tolist()):
        least = least + count * needed[problem.rows_of(one)].min(axis=0)
    moment = int(least.argmax())
    fixed = float(priced.fixed_bytes[moment])
    free = priced.device_memory - fixed
    least_bytes = float(least[moment]) * priced.device_memory - fixed * priced.gpus
    gpus = math.ceil(least_bytes / free) if free > 0 else 0
    apart = "" if all(option.tier == "device" for option in priced.options) else " or lie in host memory"
    if gpus > priced.gpus:
        hint = f"they need {counted(gpus, 'GPU')} of this size or more"
        hint += "; or let tables lie in host memory" if apart else ""
    else:
        hint = f"use more GPUs; or let large tables be split{apart}"
    return DoesNotFitError(
        f"the tables do not fit {counted(priced.gpus, 'GPU')} together",
        problems=[Problem("needs", _needed(problem, least_bytes, free * priced.gpus, moment))],
        hint=hint,
    )


def _needed(problem: PosedProblem, least_bytes: float, held_bytes: float, moment: int) -> str:
    """Least memory of all tables beside the memory there is, in words: of GPUs, or where these suffice, of hosts as
    well."""
    held = format_bytes(held_bytes)
    if least_bytes > held_bytes or not problem.priced.host_memory:
        return f"{format_bytes(least_bytes)} or more; GPUs have {held}"
    spans = problem.shards * problem.span
    device = problem.everywhere_full * problem.gpus + problem.shard_full * spans[:, None]
    host = problem.everywhere_host * problem.nodes + problem.shard_host * problem.shards
    both = device[:, moment] * problem.priced.device_memory + host * problem.priced.host_memory
    least = sum(
        count * float(both[problem.rows_of(one)].min()) for one, count in enumerate(problem.counts.tolist())
    )
    hosts = format_bytes(problem.nodes * problem.priced.host_memory)
    return f"{format_bytes(least)} or more; GPUs have {held}, and hosts {hosts}"


def _free(priced: PricedOptions) -> float:
    """Least memory of a GPU left for tables, over all moments."""
    return float(priced.device_memory - priced.fixed_bytes.max())


def _worst_moment(priced: PricedOptions, rows: Ints) -> Array:
    """(rows,) bytes that a table needs of a GPU's `_free`, at the moment when least is left."""
    shard = np.where(priced.shards[rows][:, None] > 0, priced.shard_bytes[rows], 0.0)
    needed = priced.everywhere_bytes[rows] + shard + priced.fixed_bytes - priced.fixed_bytes.max()
    worst: Array = needed.max(axis=1)
    return worst


def _table_bytes(priced: PricedOptions, rows: Ints) -> float:
    """Bytes of the table that `rows` are options of, held whole where it has such an option."""
    own = np.flatnonzero(priced.table_class == priced.table_class[rows[0]])
    whole = [at for at in own.tolist() if priced.options[at] == Option("whole")]
    held = (whole or rows.tolist())[:1]
    return float(_worst_moment(priced, np.array(held))[0] + priced.shard_host_bytes[held[0]])


def _remedies(priced: PricedOptions, rows: Ints, device: Array, host: Array, free: float) -> list[str]:
    """What would hold the table: another host, a larger device, more GPUs, slices of its columns."""
    forms = [priced.options[row] for row in rows.tolist()]
    words: list[str] = []
    hosted = [at for at, option in enumerate(forms) if option.tier == "host" and device[at] <= free]
    if hosted:
        least = min(float(host[at]) for at in hosted)
        words.append(f"{format_bytes(least)} of each node's host memory would do")
    on_device = [at for at, option in enumerate(forms) if option.tier == "device"]
    if on_device:
        least = min(float(device[at]) for at in on_device)
        words.append(f"{format_bytes(least + float(priced.fixed_bytes.max()))} a GPU would do")
    rows_split = [at for at in on_device if forms[at].form == "row"]
    if rows_split and free > 0:
        gpus = math.ceil(priced.gpus * float(device[rows_split[0]]) / free)
        words.append(f"`row` over {counted(gpus, 'GPU')}")
    whole = [at for at in on_device if forms[at].form == "whole"]
    columns = [at for at in on_device if forms[at].form == "column"]
    if whole and not columns and free > 0:
        words.append(f"`column{math.ceil(float(device[whole[0]]) / free)}` where its width divides")
    return words
