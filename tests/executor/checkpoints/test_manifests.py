"""A manifest that is none says so, however it came to be what it is."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from executor.checkpoints.manifest import MANIFEST, BrokenError, read_manifest


def signed(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "checkpoint": content})


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"sha256": "", "checkpoint": ' + "[" * 100_000,
        "null",
        '"text"',
        "[1, 2]",
        signed(None),
        signed([]),
        signed("text"),
        signed({"schema_version": 1, "progress": None, "tensors": None, "files": None}),
        signed({"schema_version": "\x1b[31m"}),
        '{"sha256": null, "checkpoint": {"schema_version": NaN}}',
        '{"sha256": null, "checkpoint": {}, "checkpoint": null}',
    ],
    ids=lambda text: text[:30],
)
def test_what_is_no_manifest(text: str, tmp_path) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(BrokenError) as caught:
        read_manifest(tmp_path)
    assert str(caught.value).startswith(f"{MANIFEST}: ")
    assert str(caught.value).isprintable()
