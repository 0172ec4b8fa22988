"""Units of quantities, with base units inside (bytes, seconds, FLOPs, bytes/s, FLOP/s) and friendly units in
files and messages.

`parse_*` reads what people write ("80 GiB", "400 Gb/s", "5 us", "312 TFLOP/s"); `format_*` writes what people
read; `Bytes`, `Bandwidth`, `Seconds` and `FlopRate` are the pydantic field types that do both, losslessly.
`value_range` limits a field to plausible values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

KIB, MIB, GIB, TIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40
KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12

_BYTES = {"B": 1.0, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB, "KB": KB, "MB": MB, "GB": GB, "TB": TB}
_BITS_PER_SECOND = {"b/s": 0.125, "Kb/s": 0.125e3, "Mb/s": 0.125e6, "Gb/s": 0.125e9, "Tb/s": 0.125e12}
_BANDWIDTH = {f"{unit}/s": factor for unit, factor in _BYTES.items()} | _BITS_PER_SECOND
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0}
_FLOP_RATE = {"FLOP/s": 1.0, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15}

FP32_BYTES = 4.0
"""Size of an fp32 element, bytes."""
SMALLEST, LARGEST = 1e-12, 1e21
"""Smallest and largest accepted value of any quantity in base units; values outside are most likely typing
errors."""

_COUNTS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

_QUANTITY = re.compile(r"^\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]+)\s*$")


def _parse(units: dict[str, float], noun: str, example: str, text: object) -> float:
    """Parse a text of a number and one of `units` into the base unit. Raises ValueError with `noun` and
    `example`."""
    match = _QUANTITY.match(text) if isinstance(text, str) else None
    if match is None or match[2] not in units:
        raise ValueError(f"`{text}` is not {noun}; write it like {example}")
    value = float(match[1]) * units[match[2]]
    if not SMALLEST <= value <= LARGEST:
        size = "is too large a number" if value > LARGEST else "is too small a number"
        raise ValueError(f"`{text}` {'must be above zero' if value <= 0 else size}")
    return value


Parser = Callable[[object], float]
"""Function from a text with a unit to the quantity in its base unit."""
parse_bytes: Parser = partial(_parse, _BYTES, "a size", "`80 GiB` or `80 GB`")
"""Convert a text such as "80 GiB" (binary) or "80 GB" (decimal) to bytes."""
parse_bandwidth: Parser = partial(_parse, _BANDWIDTH, "a bandwidth", "`400 Gb/s` (bits) or `50 GB/s` (bytes)")
"""Convert a text such as "400 Gb/s" (bits) or "50 GB/s" (bytes) to bytes/s in one direction."""
parse_seconds: Parser = partial(_parse, _SECONDS, "a duration", "`5 us`")
"""Convert a text such as "5 us" to seconds."""
parse_flop_rate: Parser = partial(_parse, _FLOP_RATE, "a compute rate", "`312 TFLOP/s`")
"""Convert a text such as "312 TFLOP/s" to FLOP/s."""


def parse_count(text: object) -> float:
    """Convert a text such as "1.4T", "300 B", "2.5M" or "1.4e12" to a number."""
    try:
        value = float(str(text))
    except ValueError:
        return _parse(_COUNTS, "a number", "`1.4T`, `300B` or `1.4e12`", text)
    if not 0 < value < math.inf:
        raise ValueError(f"`{text}` must be a number above zero")
    if value > LARGEST:
        raise ValueError(f"`{text}` is too large a number")
    return value


def _writer(units: dict[str, float], preferred: str) -> PlainSerializer:
    """Create a pydantic serializer of a quantity to the shortest text that parses to exactly the same value,
    in one of the `preferred` units or else the base unit."""
    base = next(unit for unit, factor in units.items() if factor == 1)

    def exact(value: float) -> str:
        """Text of a value in the first preferred unit in which it is exact and readable, or else in the base
        unit."""
        for unit in preferred.split():
            scaled = value / units[unit]
            text = f"{scaled:.6g}"
            if 0.5 <= scaled < 1024 and "e" not in text and float(text) * units[unit] == value:
                return f"{text} {unit}"
        return f"{value!r} {base}"

    return PlainSerializer(exact, return_type=str)


Bytes = Annotated[float, BeforeValidator(parse_bytes), _writer(_BYTES, "TiB GiB MiB KiB TB GB MB B")]
"""Field type of a size in bytes; written "80 GiB"."""
Bandwidth = Annotated[float, BeforeValidator(parse_bandwidth), _writer(_BANDWIDTH, "TB/s GB/s MB/s")]
"""Field type of a bandwidth in bytes/s, one direction; written "50 GB/s" or "400 Gb/s"."""
Seconds = Annotated[float, BeforeValidator(parse_seconds), _writer(_SECONDS, "s ms us ns")]
"""Field type of a duration in seconds; written "5 us"."""
FlopRate = Annotated[float, BeforeValidator(parse_flop_rate), _writer(_FLOP_RATE, "PFLOP/s TFLOP/s GFLOP/s")]
"""Field type of a compute rate in FLOP/s; written "312 TFLOP/s"."""


def value_range(parse: Parser, minimum: str, maximum: str) -> AfterValidator:
    """Create a pydantic validator that limits a parsed quantity to the range from `minimum` to `maximum`, as in
    `Annotated[Bytes, value_range(parse_bytes, "1 MiB", "1 PB")]`."""
    smallest, largest = parse(minimum), parse(maximum)

    def check(value: float) -> float:
        """Return the value, or raise ValueError if it is outside the range."""
        if not smallest <= value <= largest:
            raise ValueError(f"must be between {minimum} and {maximum}")
        return value

    return AfterValidator(check)


def _in_largest_unit(value: float, names: str, units: dict[str, float]) -> tuple[float, str]:
    """Value in the largest of the units `names` in which it is at least one, and that unit's name. Without
    such a unit, the unchanged value and an empty name."""
    sizes = ((name, units[name]) for name in names.split())
    return next(((value / size, name) for name, size in sizes if abs(value) >= size), (value, ""))


def format_bytes(value: float) -> str:
    """Convert bytes to text, such as "61.3 GiB" (binary, as memory is sold and reported)."""
    number, unit = _in_largest_unit(value, "TiB GiB MiB KiB", _BYTES)
    return f"{number:.1f} {unit}" if unit else f"{value:.0f} B"


def format_seconds(value: float) -> str:
    """Convert seconds to text, such as "132.1 s", "12.3 ms", "45 us"."""
    if abs(value) >= 1:
        return f"{value:.2f} s" if abs(value) < 100 else f"{value:.1f} s"
    if abs(value) >= 1e-3:
        return f"{value * 1e3:.1f} ms"
    return f"{value * 1e6:.0f} us"


def format_bandwidth(value: float) -> str:
    """Convert a bandwidth in bytes/s to text, such as "300 GB/s" (decimal, as links are sold)."""
    number, unit = _in_largest_unit(value, "TB GB MB", _BYTES)
    return f"{number:.4g} {unit}/s" if unit else f"{value:.0f} B/s"


def format_count(value: float) -> str:
    """Convert a large count to text, such as "174.6 B", "8.4 M", "512"."""
    number, unit = _in_largest_unit(value, "T B M", _COUNTS)
    return f"{number:.4g} {unit}" if unit else f"{value:,.0f}"


def rounded(value: float, digits: int = 4) -> float:
    """Round a number to significant digits, by default 4, which is far finer than the error of fitted and
    measured values."""
    return float(f"{value:.{digits}g}")


def grouped(number: int) -> str:
    """Convert an integer to text with commas between thousands, such as "3,911" for 3911."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Convert a number and a noun to text, such as "1 layout" for 1, "3,911 layouts" for 3911, "2
    microbatches" for 2."""
    plural = "es" if noun.endswith(("ch", "ss")) else "s"
    return f"{grouped(number)} {noun}{plural * (number != 1)}"


def format_days(seconds: float) -> str:
    """Convert a long duration in seconds to text, such as "1 day", "20.7 days", "2,287.7 days"; below a day
    "18.2 hours" or "3.4 minutes"."""
    if seconds < _SECONDS["d"]:
        noun, unit = ("hours", "h") if seconds >= _SECONDS["h"] else ("minutes", "min")
        return f"{seconds / _SECONDS[unit]:.1f} {noun}"
    days = f"{seconds / _SECONDS['d']:,.1f}".removesuffix(".0")
    return f"{days} day{'s' * (days != '1')}"
