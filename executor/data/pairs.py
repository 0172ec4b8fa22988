"""Byte pairs (Sennrich et al. 2016) over bytes, so that every text has tokens: learnt, kept, and read back.

A kept tokenizer is read as what it is, a vocabulary and its merges, and built anew from these: whatever else a file
says is nothing that this project writes, and the library, which would take it at its word, may end the process over it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.files.reading import parse_json
from cost_models.units import MB, grouped

END = "<|end|>"
"""Ends every text."""
BYTES = 256
MOST = 1 << 20
"""Entries of a vocabulary: four times the largest that people train with."""
_LARGEST_BYTES = int(256 * MB)
_HINT = "it is not what meshwright tokens --bpe writes: make the folder again"


def learn(texts: Iterator[str], vocabulary: int) -> Any:
    """Learn a tokenizer with the `tokenizers` package. Raises InputError for an impossible vocabulary."""
    if vocabulary <= BYTES:
        raise InputError(
            f"{vocabulary} is no vocabulary of byte pairs: {BYTES} are bytes, and one ends a text"
        )
    if vocabulary > MOST:
        raise InputError(
            f"{grouped(vocabulary)} byte pairs are more than any text has use for: {grouped(MOST)} at most"
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


def read(path: Path) -> Any:
    """The tokenizer that a token folder keeps.

    Raises:
        InputError: it is missing, or not what `learn` and its `save` leave.
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
        raise InputError(f"`{path}` is no tokenizer", hint=_HINT) from None
    library = _library()
    known = vocabulary.keys()
    numbered = all(type(number) is int for number in entries) and entries == list(range(len(entries)))
    if len(raw) > _LARGEST_BYTES or len(entries) > MOST or not numbered:
        what = "its vocabulary is not numbered from 0 on"
    elif missing := {END, *library.pre_tokenizers.ByteLevel.alphabet()} - known:
        what = f"its vocabulary lacks `{printable(min(missing))}`"
    elif not all(_is_merge(pair, vocabulary) for pair in merges):
        what = "it merges what is not in its vocabulary"
    else:
        return _around(library, library.models.BPE(vocab=vocabulary, merges=merges))
    raise InputError(f"`{path}` is no tokenizer: {what}", hint=_HINT)


def _is_merge(pair: tuple[Any, ...], vocabulary: Container[str]) -> bool:
    """Whether an entry is a merge of two entries."""
    words = len(pair) == 2 and all(isinstance(part, str) for part in pair)
    return words and all(entry in vocabulary for entry in (*pair, "".join(pair)))


def _around(library: Any, model: Any) -> Any:
    """What belongs to byte pairs over bytes besides the pairs."""
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer


def _library() -> Any:
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
