"""What a checkpoint and a token folder say of themselves: taken where it is whole, else told what is wrong with it."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fuzz_budget import inputs
from fuzz_files import changed_once, damaged
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import InputError
from cost_models.files import catalog
from executor.checkpoints.manifest import MANIFEST, BrokenError, read_manifest
from executor.data.tokens import HEADER, TOKENIZER, make_tokens, open_tokens

CHECKPOINT: dict[str, Any] = {
    "schema_version": 1,
    "progress": {
        "step": 3,
        "seed": 0,
        "learning_rate": 1e-3,
        "data": "text",
        "layout": "tp1 pp1 dp1 mbs1 zero0 layers=2",
        "model": catalog.load_model("gpt2-tiny").model_dump(mode="json"),
        "training": {"global_batch": 8, "sequence_length": 64},
    },
    "tensors": {
        "weight": {"dtype": "float32", "shape": [4], "pieces": [{"offsets": [0], "sizes": [4], "file": 0}]}
    },
    "files": [{"name": "rank-00000.safetensors", "size_bytes": 16, "sha256": "0" * 64}],
}


@inputs(0.02)
@given(data=st.data())
def test_manifests(folder: Path, data: st.DataObject) -> None:
    content: Any = json.loads(json.dumps(CHECKPOINT))
    for _ in range(data.draw(st.integers(0, 3))):
        content = data.draw(changed_once(content))
    signed = {"sha256": _digest(content), "checkpoint": content}
    if not data.draw(st.integers(0, 5)):
        signed = data.draw(changed_once(signed))
    raw = json.dumps(signed).encode()
    Path(MANIFEST).write_bytes(raw if data.draw(st.integers(0, 5)) else data.draw(damaged(raw)))
    with suppress(BrokenError):
        read_manifest(Path())


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@inputs(0.01)
@given(data=st.data())
def test_headers_of_tokens(folder: Path, data: st.DataObject) -> None:
    tokens = Path("tokens")
    if not tokens.exists():
        Path("text.txt").write_text("To be or not to be. " * 20)
        make_tokens([Path("text.txt")], tokens)
        Path("right.json").write_bytes((tokens / HEADER).read_bytes())
    content: Any = json.loads(Path("right.json").read_text())
    for _ in range(data.draw(st.integers(0, 2))):
        content = data.draw(changed_once(content))
    raw = json.dumps(content).encode()
    (tokens / HEADER).write_bytes(raw if data.draw(st.integers(0, 5)) else data.draw(damaged(raw)))
    with suppress(InputError):
        header, numbers = open_tokens(tokens, 256)
        assert len(numbers) == header.tokens


@inputs(0.01)
@given(data=st.data())
def test_tokenizers(folder: Path, data: st.DataObject) -> None:
    pytest.importorskip("tokenizers")
    text, tokens, again = Path("text.txt"), Path("pairs"), Path("again")
    text.write_text("To be or not to be. " * 20)
    if not tokens.exists():
        make_tokens([text], tokens, pairs=270)
        Path("pairs.json").write_bytes((tokens / TOKENIZER).read_bytes())
    content: Any = json.loads(Path("pairs.json").read_text("utf-8"))
    for _ in range(data.draw(st.integers(0, 2))):
        content = data.draw(changed_once(content))
    raw = json.dumps(content).encode()
    (tokens / TOKENIZER).write_bytes(raw if data.draw(st.integers(0, 3)) else data.draw(damaged(raw)))
    with suppress(InputError):
        made = make_tokens([text], again, like=tokens)
        header, numbers = open_tokens(again, made.vocabulary)
        assert int(numbers.max()) < header.vocabulary
    shutil.rmtree(again, ignore_errors=True)
