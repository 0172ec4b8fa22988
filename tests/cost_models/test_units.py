"""Quantities: what people write is read, what we write is read back exactly, wrong units are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models import units
from cost_models.base import Spec


class Quantities(Spec):
    """One field of each kind."""

    size: units.Bytes
    bandwidth: units.Bandwidth
    duration: units.Seconds
    rate: units.FlopRate


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bytes, "80 GiB", 80 * 2**30),
        (units.parse_bytes, "80 GB", 80e9),
        (units.parse_bytes, "1.5TB", 1.5e12),
        (units.parse_bytes, " 512 B ", 512),
        (units.parse_bandwidth, "400 Gb/s", 50e9),
        (units.parse_bandwidth, "50 GB/s", 50e9),
        (units.parse_bandwidth, "3.35 TB/s", 3.35e12),
        (units.parse_seconds, "5 us", 5e-6),
        (units.parse_seconds, "5 µs", 5e-6),
        (units.parse_seconds, "2 h", 7200),
        (units.parse_flop_rate, "312 TFLOP/s", 312e12),
        (units.parse_flop_rate, "2e3 TFLOP/s", 2e15),
    ],
)
def test_what_people_write(parse: Callable[[object], float], text: str, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (units.parse_bandwidth, "400 Gb", "`400 Gb` is not a bandwidth; write it like `400 Gb/s` (bits) or"),
        (units.parse_bandwidth, "50", "is not a bandwidth"),
        (units.parse_bandwidth, 50e9, "is not a bandwidth"),
        (units.parse_bandwidth, "50 gb/s", "is not a bandwidth"),
        (units.parse_bytes, "80 GiB/s", "is not a size"),
        (units.parse_bytes, None, "is not a size"),
        (units.parse_bytes, "nan GiB", "is not a size"),
        (units.parse_seconds, "5 minutes", "is not a duration"),
        (units.parse_flop_rate, "312 TFLOPS", "is not a compute rate; write it like `312 TFLOP/s`"),
        (units.parse_bytes, "0 GiB", "must be above zero"),
        (units.parse_bytes, "-1 GiB", "must be above zero"),
        (units.parse_bandwidth, "1e300 GB/s", "is too large a number"),
        (units.parse_count, "12 X", "is not a number; write it like `1.4T`, `300B` or `1.4e12`"),
        (units.parse_count, "nan", "must be a number above zero"),
    ],
)
def test_wrong_quantities_are_named(parse: Callable[[object], float], text: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"^`") as caught:
        parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "count"), [("1.4T", 1.4e12), ("300 B", 300e9), ("1.4e12", 1.4e12), ("7M", 7e6), (8, 8.0)]
)
def test_counts(text: object, count: float) -> None:
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
