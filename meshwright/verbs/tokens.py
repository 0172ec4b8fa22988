"""`tokens`: make a folder of token files from texts."""

from __future__ import annotations

from dataclasses import MISSING, field
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.flags import Options, argument, flag
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from meshwright.terminal.output import Output


class TokensOptions(Options, kw_only=True):
    """Options of `meshwright tokens`: texts, folder to write, and tokenizer."""

    texts: tuple[Path, ...] = field(metadata=argument("TEXT...", kind=list[Path]))
    """Text files, or folders of them."""
    out: Path = flag("DIR", default=MISSING, names=("-o", "--out"))
    """Token folder to write."""
    bpe: int | None = flag("N")
    """Learn N byte pairs; default: a token is a byte."""
    like: Path | None = flag("DIR")
    """Use the tokenizer of a token folder."""


@command(TokensOptions)
def tokens_command(options: TokensOptions, output: Output) -> None:
    """Make token files from texts, to train on with `run --data`."""
    from cost_models.units import counted, format_bytes, format_count
    from executor.data.tokens import make_tokens
    from meshwright.records import JSON_SCHEMA
    from meshwright.render.words import wrapped

    output.check_places()
    header = make_tokens(options.texts, options.out, pairs=options.bpe, like=options.like)
    kind = "one a byte" if header.tokenizer == "bytes" else "byte pairs"
    row = {"folder": str(options.out), **header.model_dump(mode="json")}
    output.answer(
        {"schema": JSON_SCHEMA, **row},
        [row],
        wrapped(
            f"{options.out}: {format_count(header.tokens)} tokens ({kind}, vocabulary of {header.vocabulary})"
            f" from {counted(header.texts, 'text')} of {format_bytes(header.text_bytes)}"
        ),
    )
    output.note(f"Next: meshwright run plan.yaml --data {options.out}")
