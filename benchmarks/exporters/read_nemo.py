"""Recipes of Megatron Bridge, read without running them: every setting must be a field of its configuration classes.

    python benchmarks/exporters/read_nemo.py BRIDGE MEGATRON < cases.json

A case is {"text": ..}. Bridge needs Transformer Engine and a GPU to be imported; its classes, and those of Megatron
Core that they extend, are read from the two checkouts as syntax trees, and so is the recipe.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

PARTS = {
    "model": ("GPTModelProvider", "MLAModelProvider"),
    "train": ("TrainingConfig",),
    "ddp": ("DistributedDataParallelConfig",),
    "dist": ("DistributedInitConfig",),
    "optimizer": ("OptimizerConfig",),
    "dataset": ("GPTDatasetConfig",),
    "tokenizer": ("TokenizerConfig",),
    "mixed_precision": ("MixedPrecisionConfig",),
}
FOLDERS = ("src/megatron/bridge/training", "src/megatron/bridge/models", "megatron/core", "megatron/training")


def classes(checkouts: list[str]) -> dict[str, set[str]]:
    """Fields of every class of these names, with those of the classes that they extend."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in (one for root in checkouts for folder in FOLDERS for one in Path(root, folder).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        renamed = {
            alias.asname: alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname
        }
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                fields = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}  # type: ignore[union-attr]
                own.setdefault(node.name, set()).update(fields)
                names = [getattr(base, "id", "") for base in node.bases]
                bases.setdefault(node.name, set()).update(renamed.get(name, name) for name in names)
    return {name: _all(name, own, bases, set()) for name in own}


def _all(name: str, own: dict[str, set[str]], bases: dict[str, set[str]], seen: set[str]) -> set[str]:
    if name in seen:
        return set()
    seen.add(name)
    return own.get(name, set()).union(*(_all(base, own, bases, seen) for base in bases.get(name, ())))


def read(known: dict[str, set[str]], text: str) -> dict[str, Any]:
    """What one recipe sets."""
    (function,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    values: dict[str, Any] = {}
    for node in function.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
            continue
        path = ast.unparse(node.targets[0]).removeprefix("config.")
        part, _, name = path.partition(".")
        if name and not any(name in known.get(one, ()) for one in PARTS[part]):
            return {"refused": f"{path} is no field of {' or '.join(PARTS[part])}"}
        try:
            values[path] = ast.literal_eval(node.value)
        except ValueError:
            values[path] = ast.unparse(node.value)
    return {"values": values}


def main() -> None:
    """Read all cases."""
    known = classes(sys.argv[1:])
    json.dump([read(known, case["text"]) for case in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
