"""Readers of typed amounts: `8K` tokens of a sequence, `4M tokens` of a batch, `15T`, `30 days`, `$2.50`.

`K` and `M` of a sequence and of a batch are binary, as context lengths are called: 8K is 8,192. Of tokens to train on
they are decimal.
"""

from __future__ import annotations

import math
import re
from typing import Any

from cost_models.documents import printable
from cost_models.units import LARGEST, SMALLEST, grouped, parse_count, parse_seconds

_LONGEST = 60
"""Maximum length of an amount's text, in characters."""
_NUMBER = r"\d{1,3}(?:,\d{3})+|\d*\.?\d+|\d+\."
_FLAGS = re.ASCII | re.IGNORECASE
_COUNT = re.compile(rf"(-?)({_NUMBER})\s*([km]?)i?\s*(tokens?|sequences?|seqs?)?", _FLAGS)
_TOKENS = re.compile(rf"({_NUMBER})\s*([kmbt]|thousand|million|billion|trillion)?\s*(?:tokens?)?", _FLAGS)
_DURATION = re.compile(rf"({_NUMBER})\s*([a-z]+)", _FLAGS)
_PRICE = re.compile(
    rf"(?:\$|USD)?\s*({_NUMBER})\s*(?:\$|USD|dollars?)?\s*(?:(?:/|per|an?)\s*(?:GPU-?)?(?:h|hr|hour))?",
    _FLAGS,
)
_BINARY = {"": 1, "k": 2**10, "m": 2**20}
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6}
_PERIODS = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "min": ("min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "week": ("w", "wk", "week", "weeks"),
}


def read_sequence(value: Any) -> Any:
    """Parse a sequence length in tokens, such as `8192`, `8,192` or `8K`; a value that is not text is returned
    unchanged. Raises ValueError."""
    return _read_count(value, "tokens", "`8192` or `8K`")


def read_samples(value: Any) -> Any:
    """Parse a number of samples per step, such as `55296`, `55,296` or `64K`; a value that is not text is
    returned unchanged. Raises ValueError."""
    return _read_count(value, "samples", "`55296` or `64K`")


def _read_count(value: Any, noun: str, examples: str) -> Any:
    """Parse a whole number of things called `noun`, which a text may name too where they are tokens."""
    if not isinstance(value, str):
        return value
    match = _matched(_COUNT, value)
    count = None if match is None else _whole_number(match, _BINARY)
    if match is None or count is None or not (match[4] or noun).lower().startswith(noun[:5]):
        raise ValueError(f"`{_shown(value)}` is no number of {noun}; write it like {examples}")
    return count


def read_batch(value: Any, sequence: Any) -> Any:
    """Parse the sequences per optimizer step from `512`, or from `4M tokens` in sequences of `sequence` tokens; a
    value that is not text is returned unchanged.

    `4M tokens` are 4 × 2²⁰ where that fills whole sequences, else 4 × 10⁶.

    Raises:
        ValueError: no amount, an amount without its unit (`4M`), or tokens that fill no whole number of sequences.
    """
    if not isinstance(value, str):
        return value
    match = _matched(_COUNT, value)
    if match is None:
        raise ValueError(f"`{_shown(value)}` is no number of sequences; write it like `512` or `4M tokens`")
    noun = (match[4] or "").lower()
    if noun.startswith("t"):
        return _sequences(match, sequence)
    if match[3] and not noun:
        cure = f"write `{match[0]} tokens` in quotes, or the number of sequences"
        raise ValueError(f"`{match[0]}` counts neither tokens nor sequences; {cure}")
    count = _whole_number(match, _BINARY)
    if count is None:
        raise ValueError(f"`{match[0]}` is no whole number of sequences")
    return count


def read_tokens(value: str | float) -> float:
    """Parse a number of training tokens, such as `15T`, `300 billion` or `1.4e12`. Raises ValueError."""
    match = _matched(_TOKENS, str(value))
    if match is None:
        return parse_count(_shown(str(value)))
    return parse_count(_plain(match[1]) + (match[2] or "")[:1].upper())


def read_duration(text: str) -> float:
    """Parse a duration such as `30d`, `30 days` or `2 weeks` into seconds. Raises ValueError."""
    match = _matched(_DURATION, text)
    word = match[2].lower() if match else ""
    unit = next((unit for unit, words in _PERIODS.items() if word in words), None)
    if match is None or unit is None:
        raise ValueError(f"`{_shown(text)}` is not a duration; write it like `30d` or `36h`")
    number = _plain(match[1])
    return parse_seconds(f"{7 * float(number)} d" if unit == "week" else f"{number} {unit}")


def read_price(value: str | float) -> float:
    """Parse a price such as `2.5`, `$2.50` or `2.50 USD/h` into dollars per GPU-hour. Raises ValueError."""
    match = _matched(_PRICE, str(value))
    try:
        price = float(value if match is None else _plain(match[1]))
    except ValueError:
        raise ValueError(f"`{_shown(str(value))}` is no price in dollars; write it like `2.50`") from None
    if not SMALLEST <= price <= LARGEST:
        complaint = "must be a finite number" if price > LARGEST else "must be above zero"
        raise ValueError(f"{complaint}, not `{price:g}`")
    return price


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Match a pattern against the entire text without surrounding blanks; None without a match, or where the text
    is too long."""
    return pattern.fullmatch(text.strip()) if len(text) <= _LONGEST else None


def _shown(text: str) -> str:
    return printable(text, _LONGEST)


def _plain(number: str) -> str:
    """Remove the commas between thousands from a number's text."""
    return number.replace(",", "")


def _whole_number(match: re.Match[str], units: dict[str, int]) -> int | None:
    """Integer product of the matched number and the unit, such as K; None where the product is not an integer."""
    sign, number, unit = match[1], _plain(match[2]), match[3].lower()
    if number.isdecimal():
        return int(sign + number) * units[unit]
    value = float(sign + number) * units[unit]
    return int(value) if value.is_integer() else None


def _sequences(match: re.Match[str], sequence: Any) -> int:
    """Number of sequences that the matched number of tokens fills exactly."""
    if not isinstance(sequence, int) or sequence <= 0:
        raise ValueError(f"`{match[0]}` can be told in sequences only with their length")
    for tokens in (_whole_number(match, _BINARY), _whole_number(match, _DECIMAL)):
        if tokens is not None and tokens % sequence == 0:
            return tokens // sequence
    fill = float(_plain(match[2])) * _BINARY[match[3].lower()] / sequence
    near = sorted({max(1, math.floor(fill)), math.ceil(fill)})
    message = f"`{match[0]}` are no whole number of sequences of {grouped(sequence)} tokens"
    raise ValueError(f"{message}; {' or '.join(map(grouped, near))} sequences are near")
