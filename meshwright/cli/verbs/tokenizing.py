"""`tokens`: make a token folder from texts."""

from __future__ import annotations

from pathlib import Path

from cost_models.units import counted, format_bytes, format_count
from executor.data.making import make_tokens
from meshwright.cli.output import Output
from meshwright.records import JSON_SCHEMA
from meshwright.render.words import wrapped


def tokens(texts: list[Path], folder: Path, *, bpe: int | None, like: Path | None, output: Output) -> None:
    """Write it and say what is in it.

    Raises:
        InputError: texts that cannot be read, or a folder that is there already.
    """
    header = make_tokens(texts, folder, pairs=bpe, like=like)
    kind = "one a byte" if header.tokenizer == "bytes" else "byte pairs"
    row = {"folder": str(folder), **header.model_dump(mode="json")}
    output.answer(
        {"schema": JSON_SCHEMA, **row},
        [row],
        wrapped(
            f"{folder}: {format_count(header.tokens)} tokens ({kind}, vocabulary of {header.vocabulary}) from"
            f" {counted(header.texts, 'text')} of {format_bytes(header.text_bytes)}"
        ),
    )
    output.note(f"Next: meshwright run plan.yaml --data {folder}")
