"""Values for fields: what a person might write, and what nobody should."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cost_models import units

UNITS = {
    units.parse_bytes: ("B", "KiB", "MiB", "GiB", "GB", "TB"),
    units.parse_bandwidth: ("B/s", "MB/s", "GB/s", "Gb/s", "TB/s"),
    units.parse_seconds: ("ns", "us", "ms", "s", "d"),
    units.parse_flop_rate: ("FLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"),
}
"""How a quantity is read → units it is written in."""
ALL_UNITS = tuple(unit for known in UNITS.values() for unit in known)
NASTY_TEXT = (
    "", " ", "x", "null", "yes", "1_0", "0x10", "1e5", "~", "=1+1", "@SUM(A1)", "+1", "-1", "$\\bad{x}$",
    "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\u202egnp.exe", "\ud800", "\u0000", "a\nb", "x" * 3000,
    "../../../etc/passwd", "/dev/null", "{}", "%s%n", "tp2", "gpt2-tiny", "nan", "inf",
)  # fmt: skip
NASTY: tuple[Any, ...] = (
    *NASTY_TEXT, None, True, False, 0, -1, 1, 2, 3, 7, 10**6, 10**12, 2**63, 10**30, 0.0, -0.5, 0.5, 1e-308,
    1e-300, 1e300, 1e308, float("inf"), float("nan"), [], {}, [1, 2], {"a": 1}, [[[[[[]]]]]],
)  # fmt: skip
_EXPONENTS = st.sampled_from([-320, -300, -30, -12, -9, -6, -3, -1, 0, 0, 0, 1, 2, 3, 6, 9, 12, 30, 300, 308])
_FEW = st.sampled_from([0, 1, 1, 2, 2, 3, 4, 6, 8, 12, 16, 32, 64, 100, 128, 1000])


@st.composite
def quantities(draw: st.DrawFn, known: tuple[str, ...] = ALL_UNITS) -> str:
    """`37 GB/s`, `1e-300 B/s`."""
    digits, exponent = draw(st.integers(1, 99)), draw(_EXPONENTS)
    return f"{digits}{f'e{exponent}' if exponent else ''} {draw(st.sampled_from(known))}"


nasty = st.one_of(
    st.sampled_from(NASTY), quantities(), st.floats(), st.integers(-(10**15), 10**15), st.text(max_size=6)
)
"""What a field should rather not hold."""


def plausible(annotation: Any, metadata: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """What a field of this type may hold, now and then outside its range."""
    for mark in metadata:
        if (parse := getattr(mark, "func", None)) in UNITS:
            return quantities(UNITS[parse])
    if hasattr(annotation, "__metadata__"):
        return plausible(annotation.__origin__, annotation.__metadata__)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(plausible, inner))
    if origin is tuple:
        return st.lists(plausible(inner[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(plausible(inner[0]), plausible(inner[1]), max_size=3)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: _FEW,
        float: st.one_of(st.floats(0, 2), _FEW.map(float)),
        str: st.sampled_from(["x", "a100-sxm-80gb", "any", "a name"]),
        type(None): st.none(),
    }
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return specs(annotation)
    return simple.get(annotation, nasty)


def field_values(field: FieldInfo) -> st.SearchStrategy[Any]:
    """What this field of a spec may hold."""
    return plausible(field.annotation, tuple(field.metadata))


def specs(kind: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """The fields of a spec: all that are required, none or some of the others."""
    required = {name: field_values(one) for name, one in kind.model_fields.items() if one.is_required()}
    others = {name: field_values(one) for name, one in kind.model_fields.items() if not one.is_required()}
    return st.fixed_dictionaries(required, optional=dict(list(others.items())[:4]))
