"""`plan --largest`: the largest size that fits, proved by the next, with nothing and with everything on the host."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from effort import some_of

import meshwright as mw
from cost_models.errors import InfeasibleError, InputError
from planner.search.search import search
from planner.space.restrictions import parse_restrictions
from planner.space.sizes import LADDERS, Family, family_named

ONE_H200 = {"gpus": 1, "stack": "meshwright", "host_memory": "128GiB"}


def family(name: str, by: str) -> Family:
    found = family_named(name, by)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.fixture(scope="module")
def llama() -> mw.Largest:
    return mw.largest("llama", "hgx-h200", **ONE_H200)  # type: ignore[arg-type]


def test_every_size_fits_and_the_next_does_not(llama) -> None:
    """Searched again, where nothing is left out and nothing else is known; in a usual run, with nothing on the host
    and with everything."""
    assert [one.offloads for one in llama.sizes[:4]] == [(), ("states",), ("parked",), ("streamed",)]
    for one in some_of(llama.sizes, llama.sizes[0], llama.sizes[-1]):
        assert one.next_fails
        assert one.question is not None
        stack = one.question.stack.model_copy(update={"residencies": one.offloads})
        limits = parse_restrictions(allow=("offload",) if one.offloads else ())
        asked = replace(one.question, stack=stack)
        assert search(asked, top=1, restrictions=limits).best.fits
        with pytest.raises(InfeasibleError):
            search(replace(asked, model=llama.family.model(one.size + 1)), top=1, restrictions=limits)


@pytest.mark.parametrize("name", LADDERS)
def test_families_by_width_go_through_the_sizes_that_were_published(name: str) -> None:
    wide = family(name, "width")
    sizes = [wide.parameters(size) for size in range(1, 200)]
    assert all(small < large for small, large in pairwise(sizes))
    base = family(name, "depth")
    assert base.model(base.base_size).model_copy(update={"name": base.base.name}) == base.base


def test_llama_by_width_is_llama() -> None:
    """Touvron et al. 2023, table 2: widths, depths and MLPs of 13 B and 65 B."""
    wide = family("llama", "width")
    for size, layers, inner in ((40, 40, 13824), (64, 80, 22016)):
        model = wide.model(size)
        assert (model.num_layers, model.ffn_hidden_size, model.num_heads) == (layers, inner, size)


def test_only_families_have_a_ladder() -> None:
    with pytest.raises(InputError, match="follows sizes that were published"):
        mw.largest("llama2-7b", "hgx-h200", by="width", gpus=1)


def test_the_longest_sequence_fits_and_the_next_does_not() -> None:
    """Adapters on one GPU, searched again at both lengths; the model stays as it is."""
    found = mw.largest(
        "llama3.2-1b",
        "pcie-4090",
        by="sequence",
        gpus=1,
        global_batch=4,
        task="lora",
        fix=("mbs=1", "recompute=full"),
    )
    best = found.largest
    assert best.question is not None
    length = best.question.training.sequence_length
    assert best.next_fails
    assert length == best.size * 256
    assert best.question.model == found.family.base
    limits = parse_restrictions(fix=("mbs=1", "recompute=full"))
    assert search(best.question, top=1, restrictions=limits).best.fits
    with pytest.raises(InfeasibleError):
        search(found.family.question_of_size(best.question, best.size + 1), top=1, restrictions=limits)
    assert found.rows[0]["sequence_length"] == length


def test_learned_positions_end_sequences() -> None:
    found = mw.largest("gpt2-small", "dgx-h100", by="sequence", gpus=1, fix=("mbs=1",), forbid=("offload",))
    assert found.largest.question is not None
    assert found.largest.question.training.sequence_length == 1024
    assert not found.largest.next_fails
    assert "1,024 tokens is the largest there is" in str(found)
    assert not any("time ran out" in one for one in found.remarks())
