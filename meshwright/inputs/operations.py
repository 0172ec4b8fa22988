"""Reads the operations of a cluster: a catalogue name or a file, and the flags that change them."""

from __future__ import annotations

from cost_models.errors import InputError, Problem
from cost_models.files.catalog import load_operations
from cost_models.files.loading import read_duration
from cost_models.specs.cluster import OperationsSpec
from cost_models.units import parse_bandwidth, parse_seconds
from meshwright.inputs.options import Operations

USUAL = "llama3"
"""Operations where nobody names any."""


def operations_of(options: Operations) -> OperationsSpec:
    """Read the operations; flags override what the catalogue or a file has.

    Raises:
        InputError: everything that cannot be read, at once.
    """
    named = options.operations
    base = named if isinstance(named, OperationsSpec) else load_operations(named or USUAL)
    changed: dict[str, object] = {}
    problems: list[Problem] = []
    readers = {
        "mtbf": ("--mtbf", options.mtbf, _duration),
        "restart": ("--restart", options.restart, _duration),
        "storage_write": ("--storage", options.storage, parse_bandwidth),
    }
    for field, (flag, said, read) in readers.items():
        if said is None:
            continue
        try:
            changed[field] = read(said)
        except ValueError as error:
            problems.append(Problem(flag, str(error)))
    if options.spares is not None:
        if options.spares < 0:
            problems.append(Problem("--spares", f"must not be below zero, and is {options.spares}"))
        changed["spares"] = options.spares
    if problems:
        raise InputError("the operations cannot be read", problems=problems)
    if "storage_write" in changed:
        changed["storage_read"] = None
    return OperationsSpec.model_validate(base.model_dump(mode="json") | _written(changed))


def _duration(text: str) -> float:
    """Seconds from `50000h` or `50000 h`: hours in numbers as failures have them."""
    try:
        return read_duration(text)
    except ValueError:
        return parse_seconds(text)


def _written(changed: dict[str, object]) -> dict[str, object]:
    """Values as files have them, so that they are checked as a file's are."""
    units = {"mtbf": "s", "restart": "s", "storage_write": "B/s"}
    return {name: f"{value} {units[name]}" if name in units else value for name, value in changed.items()}
