"""Token folders: how files of token IDs are read, and how text is made into them.

A token folder has `tokens.bin`, little-endian unsigned numbers in a row, their header `tokens.json`, and a tokenizer.
It appears under its name only when it is complete. `tokenizer.json` lies in it where it was made from byte pairs
(Sennrich et al. 2016) over bytes, so that every text has tokens. A kept tokenizer is read as a vocabulary and its
merges, and built anew from these: the library, which would believe whatever else the file says, may end the process.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from cost_models.base import Spec
from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files.reading import is_pipe, parse_json
from cost_models.files.whole import temporary_folder, write_whole
from cost_models.units import MB, MIB, format_bytes, grouped
from executor.checkpoints.manifest import Digest, digest_of

HEADER, TOKENS, TOKENIZER = "tokens.json", "tokens.bin", "tokenizer.json"
CHECKED = "checked.json"
LARGE_BYTES = int(64 * MIB)
"""Files of at least this many bytes take a moment to hash, so that their check is remembered."""
_HINT = "meshwright tokens TEXT... -o FOLDER makes one"

Numbers = npt.NDArray[np.generic]


class TokenHeader(Spec):
    """Header of a token folder: type, number, vocabulary and digest of its tokens."""

    schema_version: Literal[1] = 1
    dtype: Literal["uint16", "uint32"]
    """Type of one token on disk."""
    tokens: int = Field(gt=0)
    vocabulary: int = Field(gt=0)
    """Number of token IDs; every token is smaller."""
    tokenizer: Literal["bytes", "bpe"]
    """Tokenizer: `bytes` of UTF-8 text, each text ended by a zero, or byte pairs, as in `tokenizer.json`."""
    texts: int = Field(gt=0)
    text_bytes: int = Field(ge=0)
    sha256: Digest
    """SHA-256 digest of `tokens.bin`."""


def numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    """Numpy type of tokens on disk, little-endian on every machine."""
    return np.dtype(dtype).newbyteorder("<")


def read_header(folder: Path) -> TokenHeader:
    """Read a token folder's header; raises InputError if it has none, or its files differ from it."""
    if not folder.is_dir():
        raise InputError(f"no token folder `{folder}`", hint=_HINT)
    path = folder / HEADER
    try:
        header = TokenHeader.model_validate_json(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"`{folder}` is no token folder: it has no {HEADER}", hint=_HINT) from None
    except UnicodeDecodeError:
        raise InputError(f"`{path}` is not text", hint=_HINT) from None
    except ValidationError as error:
        problems = [Problem(".".join(map(str, item["loc"])), item["msg"]) for item in error.errors()]
        raise InputError(f"`{path}` is no header of tokens", problems=problems, hint=_HINT) from None
    expected, path = header.tokens * numpy_dtype(header.dtype).itemsize, folder / TOKENS
    if not path.is_file():
        raise InputError(f"`{path}` is missing", hint=_HINT)
    if (size := path.stat().st_size) != expected:
        raise InputError(
            f"`{path}` has {size} bytes; {header.tokens} tokens of {header.dtype} are {expected}",
            hint="it was cut off or changed: make the folder again",
        )
    return header


def open_tokens(folder: Path, vocabulary: int) -> tuple[TokenHeader, Numbers]:
    """Header of a token folder, and its tokens, memory-mapped.

    Raises:
        InputError: no token folder, a file of another size than its header says, or a vocabulary beyond the model's.
    """
    header = read_header(folder)
    if header.vocabulary > vocabulary:
        raise InputError(
            f"the tokens in `{folder}` are of a vocabulary of {header.vocabulary}; the model's is {vocabulary}",
            hint=f"make them with a tokenizer of at most {vocabulary}",
        )
    return header, np.memmap(folder / TOKENS, dtype=numpy_dtype(header.dtype), mode="r")


def require_whole(folder: Path, on_note: Callable[[str], None] = lambda note: None) -> None:
    """Check that the tokens of a folder have the digest in its header. A large file is hashed once, and again if it was
    changed since; `checked.json` beside it records this where the folder can be written to.

    Raises:
        InputError: their digest is not the header's, or what `read_header` raises.
    """
    header, path = read_header(folder), folder / TOKENS
    status = path.stat()
    seen = {"bytes": status.st_size, "modified_ns": status.st_mtime_ns, "sha256": header.sha256}
    large, checked = status.st_size >= LARGE_BYTES, None
    with suppress(OSError, ValueError, RecursionError):
        checked = json.loads((folder / CHECKED).read_text("utf-8"))
    if large and checked == seen:
        return
    if large:
        on_note(f"checking {path}, {format_bytes(status.st_size)}, this once")
    if digest_of(path) != header.sha256:
        raise InputError(
            f"`{path}` is not what was written (its digest differs)",
            hint="it was changed: make the folder again",
        )
    if large:
        with suppress(OSError):
            write_whole(folder / CHECKED, json.dumps(seen))


def require_a_sequence(tokens: int, sequence: int, name: str) -> None:
    """Raise InputError where tokens are too few for a single sequence with its targets."""
    if tokens <= sequence:
        need = f"one sequence of {sequence} and its targets"
        raise InputError(f"`{name}` has {tokens} tokens, too few for {need}")


END = "<|end|>"
"""Token that ends every text."""
BYTES = 256
MAX_BYTE_PAIRS = 1 << 20
"""Largest vocabulary of byte pairs that is accepted: four times the largest in use."""
_LARGEST_BYTES = int(256 * MB)
_MADE_ANEW = "it is not what meshwright tokens --bpe writes: make the folder again"


def learn_pairs(texts: Iterator[str], vocabulary: int) -> Any:
    """Learn a byte-pair tokenizer from texts; raises InputError for an impossible vocabulary."""
    if vocabulary <= BYTES:
        reason = f"{BYTES} are bytes, and one ends a text"
        raise InputError(f"{vocabulary} is no vocabulary of byte pairs: {reason}")
    if vocabulary > MAX_BYTE_PAIRS:
        raise InputError(
            f"{grouped(vocabulary)} byte pairs are more than any text has use for: {grouped(MAX_BYTE_PAIRS)} at most"
        )
    library = _library()
    tokenizer = _around(library, library.models.BPE())
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def read_pairs(path: Path) -> Any:
    """Read the byte-pair tokenizer that a token folder keeps.

    Raises:
        InputError: it is missing, or not what `learn_pairs` and its `save` leave.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST_BYTES + 1)
        model = parse_json(raw.decode("utf-8"), source=str(path)).value["model"]
        vocabulary, merges = model["vocab"], [tuple(pair) for pair in model["merges"]]
        entries = sorted(vocabulary.values())
    except OSError as error:
        raise InputError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"`{path}` is no tokenizer", hint=_MADE_ANEW) from None
    library = _library()
    token_names = vocabulary.keys()
    numbered = all(type(number) is int for number in entries) and entries == list(range(len(entries)))
    if len(raw) > _LARGEST_BYTES or len(entries) > MAX_BYTE_PAIRS or not numbered:
        problem = "its vocabulary is not numbered from 0 on"
    elif missing := {END, *library.pre_tokenizers.ByteLevel.alphabet()} - token_names:
        problem = f"its vocabulary lacks `{printable(min(missing))}`"
    elif not all(_is_merge(pair, vocabulary) for pair in merges):
        problem = "it merges what is not in its vocabulary"
    else:
        return _around(library, library.models.BPE(vocab=vocabulary, merges=merges))
    raise InputError(f"`{path}` is no tokenizer: {problem}", hint=_MADE_ANEW)


def _is_merge(pair: tuple[Any, ...], vocabulary: Container[str]) -> bool:
    """Whether a pair is two entries of the vocabulary whose concatenation is an entry."""
    words = len(pair) == 2 and all(isinstance(part, str) for part in pair)
    return words and all(entry in vocabulary for entry in (*pair, "".join(pair)))


def _around(library: Any, model: Any) -> Any:
    """Tokenizer over bytes of UTF-8 around a model of byte pairs."""
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer


def _library() -> Any:
    """The `tokenizers` package; raises InputError if it is not installed."""
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise InputError(
            "byte pairs need the package `tokenizers`", hint="pip install 'tokenizers>=0.20'"
        ) from None
    return tokenizers


_NARROW = 1 << 16
"""Largest vocabulary whose tokens take two bytes; tokens of larger ones take four."""
_CHUNK = 1 << 20


def make_tokens(
    texts: Sequence[Path], folder: Path, *, pairs: int | None = None, like: Path | None = None
) -> TokenHeader:
    """Make a token folder from text files; it appears complete or not at all.

    Folders among `texts` stand for every file in them, by name. `pairs` is the size of a vocabulary of byte pairs to
    learn from the texts; `like` a token folder whose tokenizer to use; else a token is a byte.

    Raises:
        InputError: texts that are missing, empty or no text; a folder that is there already; no `tokenizers` package.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"`{folder}` is there already", hint="choose another name, or delete it")
    files = _files(texts)
    if pairs is not None and like is not None:
        raise InputError("byte pairs are learnt or taken from another folder, not both")
    tokenizer = None
    if pairs is not None:
        tokenizer = learn_pairs((lines for path in files for lines in _lines(path)), pairs)
    elif like is not None and read_header(like).tokenizer == "bpe":
        tokenizer = read_pairs(like / TOKENIZER)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(f".{folder.name}.partial-", folder.parent) as partial:
        header = _write(files, tokenizer, partial)
        partial.chmod(0o755)
        os.rename(partial, folder)
    return header


def _write(files: Sequence[Path], tokenizer: Any, folder: Path) -> TokenHeader:
    """Write every file of a token folder, and flush the tokens to the disk; without a tokenizer a token is a byte."""
    vocabulary = BYTES if tokenizer is None else tokenizer.get_vocab_size()
    dtype: Literal["uint16", "uint32"] = "uint16" if vocabulary <= _NARROW else "uint32"
    digest, count = hashlib.sha256(), 0
    with (folder / TOKENS).open("wb") as stream:
        for path in files:
            for tokens in _encoded(path, tokenizer):
                encoded = tokens.astype(numpy_dtype(dtype)).tobytes()
                stream.write(encoded)
                digest.update(encoded)
                count += len(tokens)
        stream.flush()
        os.fsync(stream.fileno())
    if tokenizer is not None:
        tokenizer.save(str(folder / TOKENIZER))
    header = TokenHeader(
        dtype=dtype,
        tokens=count,
        vocabulary=vocabulary,
        tokenizer="bytes" if tokenizer is None else "bpe",
        texts=len(files),
        text_bytes=sum(path.stat().st_size for path in files),
        sha256=digest.hexdigest(),
    )
    # the last file of a new folder
    (folder / HEADER).write_text(json.dumps(header.model_dump(mode="json"), indent=1) + "\n", "utf-8")
    return header


def _files(texts: Sequence[Path]) -> list[Path]:
    """Text files of these paths, in order; one error names all that are missing or no text."""
    files: list[Path] = []
    for text in texts:
        files += sorted(path for path in text.rglob("*") if path.is_file()) if text.is_dir() else [text]
    problems = [Problem(str(path), obstacle) for path in files if (obstacle := _obstacle(path))]
    if problems:
        raise InputError("not every text can be read", problems=problems)
    if not any(path.stat().st_size for path in files):
        raise InputError("there is no text in " + ", ".join(f"`{text}`" for text in texts))
    return files


def _obstacle(path: Path) -> str:
    """Reason why a file is not text; empty if it is."""
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


def _encoded(path: Path, tokenizer: Any) -> Iterator[npt.NDArray[Any]]:
    """Yield the tokens of a text file, and the token that ends a text; without a tokenizer bytes, and a zero."""
    if tokenizer is not None:
        for lines in _lines(path):
            yield np.asarray(tokenizer.encode(lines).ids)
        yield np.array([tokenizer.token_to_id(END)])
        return
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield np.frombuffer(chunk, np.uint8)
    yield np.zeros(1, np.uint8)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, about a mebibyte at a time; raises InputError if it is not UTF-8."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            while lines := stream.readlines(_CHUNK):
                yield "".join(lines)
    except UnicodeDecodeError as error:
        raise InputError(
            f"`{path}` is not UTF-8: {error.reason}", hint="leave out --bpe: bytes need no encoding"
        ) from None
