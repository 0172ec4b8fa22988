"""Words of the command line: layouts, restrictions, quantities, choices of GPUs; right ones, bent ones, wrong ones."""

from __future__ import annotations

from typing import Any

from fuzz_values import NASTY_TEXT, quantities
from hypothesis import strategies as st

from cost_models.files import catalog
from cost_models.specs.choices import CONTEXTS, ORDERS, RECOMPUTE_POLICIES, SCHEDULES
from planner.objectives import OBJECTIVES

AXES = ("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "mbs", "zero", "shard")
_SMALL = st.sampled_from([1, 1, 2, 2, 4, 8, 3, 0, 16, 10**6, 10**12])
_NASTY = st.one_of(st.sampled_from([text for text in NASTY_TEXT if "\0" not in text]), st.text(max_size=5))


def _rarely(draw: st.DrawFn) -> bool:
    return not draw(st.integers(0, 11))


@st.composite
def recompute_mixes(draw: st.DrawFn) -> str:
    """`full:3/selective`, `none*2,full`, `none*100000,none*100000,…`"""
    policy = st.sampled_from(RECOMPUTE_POLICIES)
    if _rarely(draw):
        return ",".join(["none*100000"] * draw(st.sampled_from([1, 2, 1000])))
    count = draw(st.sampled_from(["", ":1", ":2", ":0", ":999999", ":x"]))
    mix = f"{draw(policy)}{count}" + (f"/{draw(policy)}" if draw(st.booleans()) else "")
    return mix if draw(st.integers(0, 2)) else f"{mix}*{draw(_SMALL)},{draw(policy)}"


@st.composite
def layouts(draw: st.DrawFn) -> str:
    """Three to eight words of the notation for about four GPUs."""
    known = "tp2 pp2", "tp4", "dp4", "pp4", "tp2 dp2", "pp2 dp2", "pp2 vpp2 dp2", "cp2 dp2"
    words = [] if _rarely(draw) else [draw(st.sampled_from(known))]
    return " ".join([*words, *draw(st.lists(_layout_words(), max_size=4))])


def _layout_words() -> st.SearchStrategy[str]:
    degrees = st.tuples(st.sampled_from(AXES), _SMALL).map(lambda pair: f"{pair[0]}{pair[1]}")
    sizes = st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 3)).map(lambda n: f"mbs{n[0]} zero{n[1]}")
    named = {"schedule": SCHEDULES, "order": ORDERS, "context": CONTEXTS}
    choices = [f"{axis}={value}" for axis, values in named.items() for value in values]
    placed = ["layers=4", "layers=2,2", "layers=1*4", "layers=3,1", "layers=-1,5", "pools=old,new", "sp"]
    mixes = recompute_mixes().map(lambda mix: f"recompute={mix}")
    return st.one_of(
        degrees, degrees, sizes, mixes, st.sampled_from(choices), st.sampled_from(placed), _NASTY
    )


@st.composite
def restrictions(draw: st.DrawFn) -> str:
    """`tp=2`, `pp>=2`, `zero3`, `cp`, `schedule=gpipe`, and what is none."""
    axis = draw(st.sampled_from([*AXES, "sp", "recompute", "schedule", "order", "context"]))
    names: dict[str, Any] = {"schedule": SCHEDULES, "order": ORDERS, "context": CONTEXTS}
    names["recompute"] = RECOMPUTE_POLICIES
    if _rarely(draw):
        return draw(_NASTY)
    sign = draw(st.sampled_from(["=", "=", "", ">=", "<=", ">", "<"]))
    if axis in names:
        return f"{axis}{sign}{draw(st.sampled_from(names[axis]))}"
    value = ",".join(str(draw(_SMALL)) for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))))
    return f"{axis}{sign}{value}"


sizes = st.one_of(
    st.sampled_from(
        ["4", "2", "8", "1", "2,4", "1..8", "2..8x3", "4..16:4", "64..2", "0", "-4", "3", "8K", "10**9"]
    ),
    st.integers(-5, 10**8).map(str),
    _NASTY,
)
"""What `--gpus` may say."""
counts = st.one_of(
    st.integers(1, 64).map(str),
    st.sampled_from(["0", "-1", "1e3", "8K", "99999999", "2.5", "1" * 30]),
    _NASTY,
)
"""What a flag for a whole number may say."""
files = st.one_of(st.sampled_from(["llama3-8B", "nowhere.yaml", "."]), _NASTY)
models = st.one_of(st.sampled_from(["gpt2-tiny", "gpt2-small", "gpt2 tiny"]), files)
_CLUSTERS = [
    "dgx-a100-80gb", "local", "dgx-a100-80gb:2+dgx-h100:2", "dgx-a100-80gb:4", "a:1+b:2", "h100",
    "/dev/null",
]  # fmt: skip
clusters = st.one_of(
    st.sampled_from([*_CLUSTERS, "dgx-h100:3+" * 50]), st.sampled_from(catalog.names("clusters")), _NASTY
)
_FLAGS: dict[str, st.SearchStrategy[str]] = {
    "--gpus": sizes,
    "--global-batch": counts,
    "--sequence": counts,
    "--precision": st.one_of(
        st.sampled_from(["bf16", "fp16", "fp32", "fp8", "bf16,fp8", "bf16,,", "int4"]), _NASTY
    ),
    "--stack": st.one_of(st.sampled_from(catalog.names("stacks")), _NASTY),
    "--profile": st.one_of(st.sampled_from(catalog.names("profiles")), _NASTY),
    "--fix": restrictions(),
    "--forbid": restrictions(),
    "--max-memory": st.one_of(quantities(), _NASTY),
    "--for": st.one_of(st.sampled_from(["megatron", "torchtitan", "megatronn"]), _NASTY),
    "--objective": st.one_of(st.sampled_from(sorted(OBJECTIVES)), _NASTY),
    "--tokens": st.one_of(st.sampled_from(["1.4T", "300B", "1e12", "1e300", "nan"]), quantities(), _NASTY),
    "--price": st.one_of(st.sampled_from(["2.5", "1e-300", "1e300", "nan", "-1", "$2.50"]), _NASTY),
    "--deadline": st.one_of(st.sampled_from(["30d", "36h", "1e300 s", "30 days"]), quantities(), _NASTY),
    "--top": counts,
    "--csv": st.sampled_from(["rows.csv", "/dev/null", "nowhere/rows.csv", ".", "\x1b[1m.csv"]),
    "-o": st.sampled_from(["out.yaml", "/dev/null", "nowhere/out.yaml", "."]),
    "--json": st.just(""),
    "--quiet": st.just(""),
    "--debugg": st.just(""),
}
_ONLY_PLANS = [
    "--fix", "--forbid", "--max-memory", "--objective", "--tokens", "--price", "--deadline", "--top",
]  # fmt: skip


@st.composite
def flags(draw: st.DrawFn, verb: str, most: int = 3) -> list[str]:
    """A few flags with values of their own."""
    known = [flag for flag in _FLAGS if verb == "plan" or flag not in _ONLY_PLANS]
    words: list[str] = []
    for flag in draw(st.lists(st.sampled_from(known), max_size=most)):
        value = draw(_FLAGS[flag])
        words += [flag, value] if value or flag not in ("--json", "--quiet", "--debugg") else [flag]
    return words
