"""Names and amounts as files write them."""

from __future__ import annotations

import csv
import re
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from calling import refusal
from hypothesis import given
from hypothesis import strategies as st
from tables import rows, unnamed

from cost_models import units
from cost_models.base import Spec
from cost_models.errors import InputError, did_you_mean, similar_names
from cost_models.files import catalog, read_data
from cost_models.files.catalog import load_model
from cost_models.files.loading import (
    known_name,
    read_batch,
    read_duration,
    read_price,
    read_sequence,
    read_tokens,
    resolve_cluster,
    resolve_model,
    resolve_training,
)
from cost_models.files.reading import parse_yaml
from cost_models.operators.parameters import total_parameters

MODELS = """
    Llama 3.1 8B | llama3.1-8b | gpt3 | gpt3-175b
    meta-llama/Meta-Llama-3-8B-Instruct | llama3-8b | Qwen/Qwen2.5-Coder-32B-Instruct | qwen2.5-32b
    deepseek-ai/DeepSeek-R1 | deepseek-v3 | deepseek-ai/DeepSeek-R1-Distill-Qwen-14B | qwen2.5-14b
    mistralai/Mistral-Nemo-Base-2407 | mistral-nemo-12b | google-bert/bert-base-uncased | bert-base
"""


def test_a_model_goes_by_its_other_names() -> None:
    cells = list(chain.from_iterable(rows(MODELS)))
    for written, name in zip(cells[::2], cells[1::2], strict=True):
        loaded = resolve_model(written)
        assert loaded.spec.name == name
        assert f"`{written}` is {name} of the catalogue" in loaded.assumptions


KINDS: tuple[catalog.Kind, ...] = ("models", "gpus", "clusters", "stacks", "profiles", "operations")


@pytest.mark.parametrize("kind", KINDS)
def test_no_suggestion_is_another_size_release_or_family(kind: catalog.Kind) -> None:
    """Of a name with another number nothing is suggested but what it may be the beginning of; a slip of letters is
    mended."""
    names = catalog.names(kind)
    numbers = [re.findall(r"[\d.]*\d", name) for name in names]
    for name in names:
        for found in re.finditer(r"\d+", name):
            other = f"{name[: found.start()]}{int(found[0]) + 1}{name[found.end() :]}"
            suggested = re.search("mean `(.+)`", did_you_mean(other, similar_names(other, names)))
            if suggested and other not in names:
                begins = plain(suggested[1]).startswith(plain(other))
                assert begins or numbers[names.index(suggested[1])] == re.findall(r"[\d.]*\d", other), other
        swapped = name[:1] + name[2:3] + name[1:2] + name[3:]
        if swapped.isascii() and name[1:3].isalpha() and swapped not in names:
            assert plain(name) in map(plain, similar_names(swapped, names)), swapped


def plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name)


def test_every_other_name_means_what_the_catalogue_has() -> None:
    for written, name in read_data("names")["names"].items():
        assert name in (known_name(written, "models"), known_name(written, "clusters"))
        assert name in (*catalog.names("models"), *catalog.names("clusters"))


def test_every_name_is_its_own_and_no_two_are_spelt_alike() -> None:
    kinds: tuple[catalog.Kind, ...] = ("models", "clusters")
    for kind in kinds:
        for name in catalog.names(kind):
            assert known_name(name, kind) == known_name(name.upper(), kind) == name


def test_what_is_no_model() -> None:
    for written, said in rows("""
        meta-llama/Llama-9-70B | unknown model `meta-llama/Llama-9-70B`\\n
        meta-llama/Llama-9-70B | give the folder with its config.json
        dgx-h100 | `dgx-h100` is a cluster, not a model\\nhint: write MODEL first, then CLUSTER
        ./nowhere/config.json | cannot read
    """):
        assert said in refusal(resolve_model, written)


def test_what_is_no_cluster() -> None:
    for written, said in rows("""
        h100 | `h100` is a GPU, not a cluster; did you mean `dgx-h100`?\\n
        h100 | hint: clusters of it: dgx-h100, aws-p5, llama3-pods, two-buildings, pcie-h100
        A100 | did you mean `dgx-a100-80gb`?
        a100-sxm-40gb | did you mean `dgx-a100-40gb`?
        dgx-a100-80gb+dgx-h100 | without --gpus: dgx-a100-80gb:64+dgx-h100:64
        dgx-a100-80gb:32+dgx-h100 | does not say how many GPUs each pool has
        - | unknown cluster ``
    """):
        assert said in refusal(resolve_cluster, written)


def test_a_cluster_may_say_its_size() -> None:
    assert resolve_cluster("dgx-h100:128") == resolve_cluster("DGX H100", 128)
    assert resolve_cluster("dgx-h100:128", 128).num_gpus == 128
    with pytest.raises(InputError, match="`dgx-h100:128` has 128 GPUs, --gpus says 64"):
        resolve_cluster("dgx-h100:128", 64)
    with pytest.raises(InputError, match="100 GPUs are no whole number"):
        resolve_cluster("dgx-h100:100")


@pytest.mark.parametrize(("cluster", "gpus", "number"), [("gb200-nvl72", 128, 3), ("dgx-h100", 12, 2)])
def test_sizes_and_clusters_that_a_hint_names_are_there(cluster: str, gpus: int, number: int) -> None:
    with pytest.raises(InputError, match="no whole number") as caught:
        resolve_cluster(cluster, gpus)
    named = re.findall(r"--gpus (\d+)|`([\w-]+)`", caught.value.hint)
    assert len(named) == number
    for size, other in named:
        assert resolve_cluster(other or cluster, int(size or gpus)).num_gpus == int(size or gpus)


def test_a_sequence_and_a_batch() -> None:
    for text, tokens in rows("""
        8192 | 8192
        8K | 8192
        128 K | 131072
        1M | 1048576
        8K tokens | 8192
    """):
        assert read_sequence(text) == int(tokens)
    for text, sequence, sequences in rows("""
        512 | 8192 | 512
        1,536 | 2048 | 1536
        4M tokens | 8192 | 512
        4M tokens | 2000 | 2000
        4Mtokens | 8192 | 512
        2K sequences | 8192 | 2048
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
    said = refusal(resolve_training, None, global_batch="4M", sequence_length="long")
    assert unnamed(said, "--sequence: ", "--global-batch: ") == []


def test_words_and_numbers_of_yaml_are_those_of_1_2() -> None:
    text = "{a: no, b: 1_000_000, c: 300e9, d: 0x10, e: 12:30, f: ~, g: 'true', h: True, i: 010, j: !!str 5}"
    values = parse_yaml(text, source="x.yaml").value
    assert list(values.values()) == ["no", 10**6, 3e11, "0x10", "12:30", None, "true", True, 10, "5"]


class Quantities(Spec):
    """One field of each kind."""

    size: units.Bytes
    bandwidth: units.Bandwidth
    duration: units.Seconds
    rate: units.FlopRate


def test_what_people_write() -> None:
    for parse, text, value in [
        (units.parse_bytes, "80 GiB", 80 * 2**30),
        (units.parse_bytes, "80 GB", 80e9),
        (units.parse_bytes, "1.5TB", 1.5e12),
        (units.parse_bandwidth, "400 Gb/s", 50e9),
        (units.parse_bandwidth, "50 GB/s", 50e9),
        (units.parse_seconds, "5 us", 5e-6),
        (units.parse_seconds, "5 µs", 5e-6),
        (units.parse_flop_rate, "312 TFLOP/s", 312e12),
    ]:
        assert parse(text) == pytest.approx(value, rel=1e-15)


def test_wrong_quantities_are_named() -> None:
    for parse, text, message in [
        (units.parse_bandwidth, "400 Gb", "`400 Gb` is not a bandwidth; write it like `400 Gb/s` (bits) or"),
        (units.parse_bandwidth, 50e9, "is not a bandwidth"),
        (units.parse_bandwidth, "50 gb/s", "is not a bandwidth"),
        (units.parse_bytes, None, "is not a size"),
        (units.parse_bytes, "nan GiB", "is not a size"),
        (units.parse_flop_rate, "312 TFLOPS", "is not a compute rate; write it like `312 TFLOP/s`"),
        (units.parse_bytes, "0 GiB", "must be above zero"),
        (units.parse_bandwidth, "1e300 GB/s", "is too large a number"),
        (units.parse_count, "12 X", "is not a number; write it like `1.4T`, `300B` or `1.4e12`"),
        (units.parse_count, "nan", "must be a number above zero"),
    ]:
        with pytest.raises(ValueError, match=r"^`") as caught:
            parse(text)
        assert message in str(caught.value)


def test_counts() -> None:
    for text, count in [("1.4T", 1.4e12), ("300 B", 300e9), ("1.4e12", 1.4e12), ("7M", 7e6), (8, 8.0)]:
        assert units.parse_count(text) == count


positive = st.floats(min_value=1e-12, max_value=1e21, allow_nan=False, allow_infinity=False)


@given(positive, positive, positive, positive)
def test_files_give_back_the_exact_value(size: float, bandwidth: float, duration: float, rate: float) -> None:
    """Plans replay to the bit: friendly text is used only where it is exact, `repr` elsewhere."""
    written = Quantities.model_construct(size=size, bandwidth=bandwidth, duration=duration, rate=rate)
    assert Quantities.model_validate_json(written.model_dump_json()) == written


@given(st.integers(1, 511), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_round_sizes_are_written_as_people_write_them(count: int, unit: str) -> None:
    text = f"{count} {unit}"
    spec = Quantities(size=text, bandwidth="1 GB/s", duration="1 s", rate="1 TFLOP/s")  # type: ignore[arg-type]
    assert spec.model_dump(mode="json")["size"] == text


ROWS = [*csv.DictReader(Path(__file__).with_name("hub_names.csv").read_text(encoding="utf-8").splitlines())]


def test_ids_that_people_type_name_models_of_the_catalogue() -> None:
    assert len(ROWS) >= 200
    assert {row["id"]: known_name(row["id"], "models") for row in ROWS} == {r["id"]: r["model"] for r in ROWS}


@pytest.mark.parametrize("row", [row for row in ROWS if row["parameters"]], ids=lambda row: row["model"])
def test_models_have_the_parameters_of_their_checkpoints(row: dict[str, str]) -> None:
    assert total_parameters(load_model(row["model"])) == int(row["parameters"])
