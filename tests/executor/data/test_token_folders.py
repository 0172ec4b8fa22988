"""Token folders: what is written is read, whole or not at all, and what is wrong is said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import InputError
from executor.checkpoints.manifest import digest_of
from executor.data.batches import shuffled
from executor.data.tokens import END, MAX_BYTE_PAIRS, make_tokens, open_tokens, read_header, require_whole

TEXT = "The quick brown fox jumps over the lazy dog. " * 40 + "ünïcode\r\n"


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


@given(count=st.integers(1, 3000), seed=st.integers(0, 2**32))
def test_a_shuffle_is_a_bijection(count: int, seed: int) -> None:
    places = np.arange(count, dtype=np.uint64)
    assert sorted(shuffled(places, count, (seed, 0)).tolist()) == list(range(count))


def test_a_shuffle_needs_no_neighbours() -> None:
    """One position at a time gives what all together give; another epoch another order."""
    places = np.arange(1000, dtype=np.uint64)
    whole = shuffled(places, 1000, (7, 0))
    assert [int(shuffled(places[i : i + 1], 1000, (7, 0))[0]) for i in (0, 1, 500, 999)] == whole[
        [0, 1, 500, 999]
    ].tolist()
    assert (whole != shuffled(places, 1000, (7, 1))).mean() > 0.9
    assert abs(np.corrcoef(places, whole)[0, 1]) < 0.1


def test_bytes_round_trip(text, tmp_path) -> None:
    """Two texts, each ended by a zero."""
    made = make_tokens([text, text], tmp_path / "tokens")
    header, tokens = open_tokens(tmp_path / "tokens", 256)
    assert header == made
    assert tokens.dtype == np.dtype("<u2")
    assert bytes(tokens.astype(np.uint8)) == (TEXT.encode() + b"\0") * 2
    assert (header.vocabulary, header.texts, header.text_bytes) == (256, 2, 2 * len(TEXT.encode()))


def test_byte_pairs_round_trip(text, tmp_path) -> None:
    """Learnt here, kept beside the tokens, used again for another text."""
    tokenizers = pytest.importorskip("tokenizers")
    made = make_tokens([text], tmp_path / "tokens", pairs=300)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokens" / "tokenizer.json"))
    _, tokens = open_tokens(tmp_path / "tokens", 300)
    assert tokenizer.decode(tokens.tolist(), skip_special_tokens=False) == TEXT + END
    assert made.tokens < len(TEXT) / 2
    assert make_tokens([text], tmp_path / "again", like=tmp_path / "tokens").sha256 == made.sha256


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kept: "[" * 100_000,
        lambda kept: "null",
        lambda kept: kept | {"model": None},
        lambda kept: kept | {"model": kept["model"] | {"merges": [["a", "zz"]]}},
        lambda kept: kept | {"model": kept["model"] | {"vocab": kept["model"]["vocab"] | {"a": 10**9}}},
    ],
)
def test_what_is_no_tokenizer_is_refused(spoil: Callable[[Any], Any], text, tmp_path) -> None:
    pytest.importorskip("tokenizers")
    make_tokens([text], tmp_path / "tokens", pairs=300)
    kept = tmp_path / "tokens" / "tokenizer.json"
    spoilt = spoil(json.loads(kept.read_text("utf-8")))
    kept.write_text(spoilt if isinstance(spoilt, str) else json.dumps(spoilt))
    with pytest.raises(InputError, match=r"tokenizer.json` is no tokenizer"):
        make_tokens([text], tmp_path / "again", like=tmp_path / "tokens")
    assert not (tmp_path / "again").exists()


def test_what_a_tokenizer_says_besides_its_pairs_counts_for_nothing(text, tmp_path) -> None:
    """The library panics over some of it, which no Python catches."""
    pytest.importorskip("tokenizers")
    made = make_tokens([text], tmp_path / "tokens", pairs=300)
    kept = tmp_path / "tokens" / "tokenizer.json"
    content = json.loads(kept.read_text("utf-8"))
    content["model"]["continuing_subword_prefix"] = "longer than any token there is"
    kept.write_text(json.dumps(content | {"normalizer": {"type": "Replace", "pattern": "("}}))
    assert make_tokens([text], tmp_path / "again", like=tmp_path / "tokens").sha256 == made.sha256


@pytest.mark.parametrize("pairs", [MAX_BYTE_PAIRS + 1, 10**9, 10**30])
def test_more_pairs_than_there_are(pairs: int, text, tmp_path) -> None:
    with pytest.raises(InputError, match="byte pairs are more than any text has use for"):
        make_tokens([text], tmp_path / "tokens", pairs=pairs)


def test_tokens_that_were_changed_are_noticed(text, tmp_path, monkeypatch) -> None:
    """As many bytes as before, another one among them; a large file is hashed again when it was written to since."""
    monkeypatch.setattr("executor.data.tokens.LARGE_BYTES", 0)
    folder = tmp_path / "tokens"
    make_tokens([text], folder)
    hashed: list[Path] = []
    monkeypatch.setattr("executor.data.tokens.digest_of", lambda path: hashed.append(path) or digest_of(path))
    for _ in range(2):
        require_whole(folder)
    assert len(hashed) == 1
    content = bytearray((folder / "tokens.bin").read_bytes())
    content[10] ^= 1
    (folder / "tokens.bin").write_bytes(content)
    os.utime(folder / "tokens.bin", ns=(1, 1))
    with pytest.raises(InputError, match=r"tokens.bin` is not what was written"):
        require_whole(folder)


def test_folders_stand_for_their_files(tmp_path) -> None:
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    (tmp_path / "texts" / "b.txt").write_text("b")
    (tmp_path / "texts" / "deep" / "a.txt").write_text("a")
    make_tokens([tmp_path / "texts"], tmp_path / "tokens")
    assert bytes(open_tokens(tmp_path / "tokens", 256)[1].astype(np.uint8)) == b"b\0a\0"


def test_every_bad_text_is_named_and_nothing_is_left(text, tmp_path) -> None:
    (tmp_path / "image").write_bytes(b"\x89PNG\0")
    with pytest.raises(InputError) as refused:
        make_tokens([text, tmp_path / "image", tmp_path / "missing"], tmp_path / "tokens")
    assert [problem.what for problem in refused.value.problems] == [
        "it has zero bytes, so it is no text",
        "no such file or directory",
    ]
    (tmp_path / "latin").write_bytes(b"caf\xe9 " * 100)
    with pytest.raises(InputError, match="latin` is not UTF-8"):
        make_tokens([tmp_path / "latin"], tmp_path / "tokens", pairs=300)
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "image", "latin"}


@pytest.mark.timeout(60)
def test_a_pipe_is_no_text(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError) as refused:
        make_tokens([tmp_path / "pipe"], tmp_path / "tokens")
    assert [problem.what for problem in refused.value.problems] == [
        "it is no file, and texts are read more than once"
    ]


def test_what_is_there_is_not_overwritten(text, tmp_path) -> None:
    make_tokens([text], tmp_path / "tokens")
    with pytest.raises(InputError, match="is there already"):
        make_tokens([text], tmp_path / "tokens")
    (tmp_path / "empty").write_text("")
    with pytest.raises(InputError, match="there is no text"):
        make_tokens([tmp_path / "empty"], tmp_path / "more")
    with pytest.raises(InputError, match="256 is no vocabulary of byte pairs"):
        make_tokens([text], tmp_path / "more", pairs=256)


def test_broken_folders_say_what_is_wrong(text, tmp_path) -> None:
    folder = tmp_path / "tokens"
    count = make_tokens([text], folder).tokens
    with pytest.raises(InputError, match="of a vocabulary of 256; the model's is 100"):
        open_tokens(folder, 100)
    os.truncate(folder / "tokens.bin", 100)
    with pytest.raises(InputError, match=f"has 100 bytes; {count} tokens of uint16 are {2 * count}"):
        read_header(folder)
    (folder / "tokens.bin").unlink()
    with pytest.raises(InputError, match=r"tokens.bin` is missing"):
        read_header(folder)
    header = json.loads((folder / "tokens.json").read_text())
    (folder / "tokens.json").write_text(json.dumps(header | {"dtype": "int8", "tokens": 0}))
    with pytest.raises(InputError, match="is no header of tokens") as refused:
        read_header(folder)
    assert [problem.where for problem in refused.value.problems] == ["dtype", "tokens"]
    (folder / "tokens.json").unlink()
    with pytest.raises(InputError, match=r"it has no tokens.json"):
        read_header(folder)
    with pytest.raises(InputError, match="no token folder"):
        read_header(tmp_path / "missing")
