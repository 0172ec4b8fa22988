"""Make a token folder from texts: byte by byte, or with byte pairs learnt from them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cost_models.errors import InputError, Problem
from cost_models.files.reading import is_pipe
from cost_models.files.whole import temporary_folder
from executor.data import tokens

_NARROW = 1 << 16
"""Tokens of a vocabulary up to here take two bytes, beyond it four."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class _Encoder:
    """An encoder of text as token numbers."""

    kind: str
    vocabulary: int
    encode: Callable[[Path], Iterator[Sequence[int] | bytes]]
    save: Callable[[Path], None]


def make_tokens(
    texts: Sequence[Path], folder: Path, *, pairs: int | None = None, like: Path | None = None
) -> tokens.TokenHeader:
    """Write `folder`, whole or not at all.

    Folders among `texts` stand for every file in them, by name. `pairs` is the size of a vocabulary of byte pairs to
    learn from the texts; `like` a token folder whose tokenizer to use; else a token is a byte.

    Raises:
        InputError: texts that are missing, empty or no text; a folder that is there already; no `tokenizers` package.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"`{folder}` is there already", hint="choose another name, or delete it")
    files = _files(texts)
    encoder = _encoder(files, pairs, like)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(f".{folder.name}.partial-", folder.parent) as partial:
        header = _write(files, encoder, partial)
        partial.chmod(0o755)
        os.rename(partial, folder)
    return header


def _write(files: Sequence[Path], encoder: _Encoder, folder: Path) -> tokens.TokenHeader:
    """Write every file of a token folder and flush it to the disk."""
    dtype = "uint16" if encoder.vocabulary <= _NARROW else "uint32"
    digest, count = hashlib.sha256(), 0
    with (folder / tokens.TOKENS).open("wb") as stream:
        for path in files:
            for piece in encoder.encode(path):
                raw = np.frombuffer(piece, np.uint8) if isinstance(piece, bytes) else np.asarray(piece)
                encoded = raw.astype(tokens.numpy_dtype(dtype)).tobytes()
                stream.write(encoded)
                digest.update(encoded)
                count += len(raw)
        stream.flush()
        os.fsync(stream.fileno())
    encoder.save(folder)
    header = tokens.TokenHeader.model_validate(
        {
            "dtype": dtype,
            "tokens": count,
            "vocabulary": encoder.vocabulary,
            "tokenizer": encoder.kind,
            "texts": len(files),
            "text_bytes": sum(path.stat().st_size for path in files),
            "sha256": digest.hexdigest(),
        }
    )
    tokens.write_header(header, folder)
    return header


def _files(texts: Sequence[Path]) -> list[Path]:
    """The text files of these paths, in order; one error names all that are missing or no text."""
    files: list[Path] = []
    for text in texts:
        files += sorted(path for path in text.rglob("*") if path.is_file()) if text.is_dir() else [text]
    problems = [Problem(str(path), what) for path in files if (what := _obstacle(path))]
    if problems:
        raise InputError("not every text can be read", problems=problems)
    if not any(path.stat().st_size for path in files):
        raise InputError("there is no text in " + ", ".join(f"`{text}`" for text in texts))
    return files


def _obstacle(path: Path) -> str:
    """Why a file is no text; empty where it is."""
    if is_pipe(path):
        return "it is no file, and texts are read more than once"
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                if b"\0" in chunk:
                    return "it has zero bytes, so it is no text"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _encoder(files: Sequence[Path], pairs: int | None, like: Path | None) -> _Encoder:
    if pairs is not None and like is not None:
        raise InputError("byte pairs are learnt or taken from another folder, not both")
    if like is not None:
        if tokens.read_header(like).tokenizer == "bytes":
            return _by_bytes()
        return _by_pairs(tokens.read_pairs(like / tokens.TOKENIZER))
    if pairs is None:
        return _by_bytes()
    return _by_pairs(tokens.learn_pairs((lines for path in files for lines in _lines(path)), pairs))


def _by_bytes() -> _Encoder:
    def encode(path: Path) -> Iterator[bytes]:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
        yield b"\0"

    return _Encoder("bytes", tokens.BYTES, encode, lambda folder: None)


def _by_pairs(tokenizer: Any) -> _Encoder:
    end = tokenizer.token_to_id(tokens.END)

    def encode(path: Path) -> Iterator[Sequence[int]]:
        for lines in _lines(path):
            yield tokenizer.encode(lines).ids
        yield [end]

    return _Encoder(
        "bpe",
        tokenizer.get_vocab_size(),
        encode,
        lambda folder: tokenizer.save(str(folder / tokens.TOKENIZER)),
    )


def _lines(path: Path) -> Iterator[str]:
    """The whole lines of a file, about a mebibyte at a time. Raises InputError where it is not UTF-8."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            while lines := stream.readlines(_CHUNK):
                yield "".join(lines)
    except UnicodeDecodeError as error:
        raise InputError(
            f"`{path}` is not UTF-8: {error.reason}", hint="leave out --bpe: bytes need no encoding"
        ) from None
