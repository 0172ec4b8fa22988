"""Amounts as people type them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import rows

from cost_models.errors import InputError
from cost_models.files.loading import (
    read_batch,
    read_duration,
    read_price,
    read_sequence,
    read_tokens,
    resolve_training,
)
from cost_models.files.reading import parse_yaml


def test_a_sequence_and_a_batch() -> None:
    for text, tokens in rows("""
        8192 | 8192
        8,192 | 8192
        8K | 8192
        8k | 8192
        128 K | 131072
        1M | 1048576
        8K tokens | 8192
    """):
        assert read_sequence(text) == int(tokens)
    for text, sequence, sequences in rows("""
        512 | 8192 | 512
        1,536 | 2048 | 1536
        4M tokens | 8192 | 512
        4M tokens | 4096 | 1024
        4M tokens | 2000 | 2000
        4Mtokens | 8192 | 512
        2K sequences | 8192 | 2048
        16384 tokens | 4096 | 4
    """):
        assert read_batch(text, int(sequence)) == int(sequences)


def test_what_is_no_batch() -> None:
    for text, sequence, said in rows("""
        4M | 8192 | counts neither tokens nor sequences; write `4M tokens`
        3.2M tokens | 2048 | 1,638 or 1,639 sequences are near
        4M tokens | - | only with their length
        many | 8192 | write it like `512` or `4M tokens`
        1.5 | 8192 | no whole number of sequences
    """):
        with pytest.raises(ValueError, match=said):
            read_batch(text, int(sequence) if sequence else None)


def test_times_money_and_tokens() -> None:
    assert read_duration("30 days") == read_duration("30d") == 30 * 86400
    assert read_duration("1 day") == read_duration("24 hours") == 86400
    assert read_duration("2 weeks") == 14 * 86400
    assert read_price("$2.50") == read_price("2.5") == read_price(2.5) == read_price("2.50 USD/h") == 2.5
    assert read_tokens("15T") == read_tokens("15 trillion tokens") == read_tokens(15e12) == 15e12
    for text in ("€2.50", "2 EUR", "free", "-1", "nan"):
        with pytest.raises(ValueError, match=r"price in dollars|above zero"):
            read_price(text)
    for text in ("30", "1 month", "soon"):
        with pytest.raises(ValueError, match="write it like `30d`"):
            read_duration(text)


@given(st.text("0123456789kKmMbBtT.,$- tokensdayUSD/h", max_size=70))
def test_any_text_is_an_amount_or_a_value_error(text: str) -> None:
    batch = partial(read_batch, sequence=8192)
    for read in (read_sequence, batch, read_tokens, read_duration, read_price):
        with suppress(ValueError):
            assert read(text) is not None


def test_flags_and_files_take_them(tmp_path) -> None:
    file = tmp_path / "training.yaml"
    file.write_text("kind: training\nglobal_batch: 4M tokens\nsequence_length: 8K\ntokens: 15T\n")
    training = resolve_training(str(file))
    assert (training.global_batch, training.sequence_length, training.tokens) == (512, 8192, 15e12)
    assert resolve_training(str(file), sequence_length="4K").global_batch == 1024
    with pytest.raises(InputError) as caught:
        resolve_training(None, global_batch="4M", sequence_length="long")
    assert {problem.where for problem in caught.value.problems} == {"--sequence", "--global-batch"}


def test_words_and_numbers_of_yaml_are_those_of_1_2() -> None:
    text = "{a: no, b: 1_000_000, c: 300e9, d: 0x10, e: 12:30, f: ~, g: 'true', h: True, i: 010, j: !!str 5}"
    values = parse_yaml(text, source="x.yaml").value
    assert list(values.values()) == ["no", 10**6, 3e11, "0x10", "12:30", None, "true", True, 10, "5"]
