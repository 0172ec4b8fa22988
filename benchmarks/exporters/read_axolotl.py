"""axolotl's schemas: files as JSON on stdin, what they read or why they refused as JSON on stdout.

    python benchmarks/exporters/read_axolotl.py CHECKOUT < cases.json

A case is {"text": .., "world": 16}. `FSDPConfig`, which needs pydantic alone, validates the file's `fsdp_config`. The
other schemas import all of axolotl and are not run: every key of the file must be a field of one of their classes.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = "src/axolotl/utils/schemas"


def fields_of(folder: Path) -> Iterator[str]:
    """Names of the fields of all schemas."""
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield from (
                    one.target.id
                    for one in node.body
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
                )


def read(schema: Any, known: set[str], case: dict[str, Any]) -> dict[str, Any]:
    """What the schemas make of one case."""
    said = yaml.safe_load(case["text"])
    if unknown := sorted(said.keys() - known):
        return {"refused": f"no schema has {', '.join(unknown)}"}
    inner = said.get("fsdp_config")
    if inner is not None and (unknown := sorted(inner.keys() - schema.model_fields.keys())):
        return {"refused": f"FSDPConfig has no {', '.join(unknown)}"}
    try:
        fsdp = None if inner is None else schema.model_validate(inner)
    except ValueError as error:
        return {"refused": str(error)}
    return {
        "values": {
            **said,
            **{f"fsdp_config.{name}": value for name, value in (inner or {}).items()},
            "fsdp": fsdp is not None and said["fsdp_version"] == 2,
            "reshard": fsdp.reshard_after_forward if fsdp else None,
            "checkpointing": said.get("gradient_checkpointing", False),
            "tp": said.get("tensor_parallel_size"),
            "cp": said.get("context_parallel_size"),
            "shard": said.get("dp_shard_size"),
            "replicate": said.get("dp_replicate_size"),
        }
    }


def main() -> None:
    """Read all cases."""
    folder = Path(sys.argv[1], SCHEMAS)
    found = importlib.util.spec_from_file_location("fsdp", folder / "fsdp.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    known = set(fields_of(folder))
    answers = [read(module.FSDPConfig, known, case) for case in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
