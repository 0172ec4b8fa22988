"""`meshwright tokens`: make a token folder from texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import options as o
from meshwright.cli.output import Output
from meshwright.records import JSON_SCHEMA


def tokens(
    texts: Annotated[
        list[Path],
        typer.Argument(metavar="TEXT...", help="Text files, or folders of them.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Token folder to write.")],
    bpe: Annotated[
        int | None, o.optional("--bpe", "N", "Learn N byte pairs; default: a token is a byte.")
    ] = None,
    like: Annotated[Path | None, o.optional("--like", "DIR", "Use the tokenizer of a token folder.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Make token files from texts, to train on with `run --data`."""
    from cost_models.units import counted, format_bytes, format_count
    from executor.data.making import make_tokens
    from meshwright.render.words import wrapped

    output = Output(json=json, csv=csv, quiet=quiet)
    header = make_tokens(texts, out, pairs=bpe, like=like)
    kind = "one a byte" if header.tokenizer == "bytes" else "byte pairs"
    row = {"folder": str(out), **header.model_dump(mode="json")}
    output.answer(
        {"schema": JSON_SCHEMA, **row},
        [row],
        wrapped(
            f"{out}: {format_count(header.tokens)} tokens ({kind}, vocabulary of {header.vocabulary}) from"
            f" {counted(header.texts, 'text')} of {format_bytes(header.text_bytes)}"
        ),
    )
    output.note(f"Next: meshwright run plan.yaml --data {out}")
