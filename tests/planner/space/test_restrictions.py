"""Restrictions of the space of layouts, its sizes, and machines that are shared."""

from __future__ import annotations

import operator
from dataclasses import replace
from itertools import pairwise

import pytest
from asking import ask, change
from calling import refusal
from hypothesis import given
from hypothesis import strategies as st
from small import MODEL, small_question

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, canonical_order, parse_layout
from cost_models.errors import InfeasibleError, InputError
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import time_terms
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, ORDERS, SCHEDULES
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import format_bytes
from planner.rules.legality import check
from planner.search.search import Budget, search
from planner.space.limits import tensor_degrees
from planner.space.restrictions import Restrictions, allowed_rows, parse_restrictions, with_context_ways
from planner.space.sizes import parse_sizes, plain_layouts
from planner.space.space import SpaceCache, legal_space

NUMBERS = ("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "mbs", "shard")
COMPARISONS = {"=": operator.eq, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
QUESTION = small_question(8, stack="meshwright")


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Small degrees, so that restrictions on small numbers decide."""
    small = dict.fromkeys(("tp", "pp", "cp", "dp", "ep", "mbs"), st.integers(1, 4))
    few = dict.fromkeys(("etp", "shard"), st.sampled_from([None, 1, 2]))
    named = {"order": st.sampled_from(ORDERS), "context": st.sampled_from([None, *CONTEXTS])}
    switches = {"zero": st.integers(0, 3), "sp": st.booleans()}
    fields = {axis: draw(values) for axis, values in (small | few | named | switches).items()}
    vpp = draw(st.integers(1, 2))
    schedule = "interleaved" if vpp > 1 else draw(st.sampled_from(SCHEDULES[:2]))
    return Layout(vpp=vpp, schedule=schedule, **fields)


Wish = tuple[str, str, tuple[int | str, ...]]
"""Axis, comparison, values."""


@st.composite
def wishes(draw: st.DrawFn) -> Wish:
    """One word of `--fix` or `--forbid`, before it is written."""
    axis = draw(st.sampled_from([*NUMBERS, "zero", "sp", "schedule", "order", "context"]))
    names = {"schedule": SCHEDULES, "order": ORDERS, "context": CONTEXTS}
    if axis in names:
        return axis, "=", tuple(draw(st.lists(st.sampled_from(names[axis]), min_size=1, max_size=3)))
    if axis == "sp":
        return axis, "=", (draw(st.integers(0, 1)),)
    number = st.integers(0, 3) if axis == "zero" else st.integers(1, 4)
    comparison = draw(st.sampled_from(list(COMPARISONS)))
    return axis, comparison, tuple(draw(st.lists(number, min_size=1, max_size=3 if comparison == "=" else 1)))


def written(wish: Wish) -> str:
    axis, comparison, values = wish
    return f"{axis}{comparison}{','.join(str(value) for value in values)}"


def meets(layout: Layout, axis: str, comparison: str, value: int | str) -> bool:
    """One comparison, read off one layout."""
    if axis == "order":
        return canonical_order(str(value), layout.cp, layout.dp, layout.pp) == layout.order  # type: ignore[arg-type]
    if axis == "context":
        return layout.cp == 1 or (layout.context or QUESTION.stack.context_parallel) == value
    own = {"etp": layout.expert_tp, "shard": layout.shard_group}.get(axis, getattr(layout, axis, None))
    return bool(COMPARISONS[comparison](own, value))


def kept(layout: Layout, fix: list[Wish], forbid: list[Wish]) -> bool:
    """What a person would say."""
    for axis in {axis for axis, comparison, _ in fix if comparison == "="}:
        lists = [values for a, c, values in fix if a == axis and c == "="]
        named = [value for value in lists[0] if all(value in others for others in lists)]
        banned = [v for a, c, values in forbid if a == axis and c == "=" for v in values]
        if axis in ("order", "context"):
            named = [value for value in named if value not in banned]
        if not named:
            return False
        if not any(meets(layout, axis, "=", value) for value in named) and not (
            axis == "context" and layout.cp == 1
        ):
            return False
    bounds = [(a, c, values[0]) for a, c, values in fix if c != "="]
    if not all(meets(layout, *bound) for bound in bounds):
        return False
    if any(meets(layout, a, c, values[0]) for a, c, values in forbid if c != "="):
        return False
    for axis, comparison, values in forbid:
        if comparison != "=" or (axis == "context" and layout.cp == 1):
            continue
        if axis == "order":
            banned = [v for a, _, vs in forbid if a == "order" for v in vs]
            if not any(meets(layout, axis, "=", order) for order in ORDERS if order not in banned):
                return False
        elif any(meets(layout, axis, "=", value) for value in values):
            return False
    return True


def read(fix: list[Wish], forbid: list[Wish]) -> Restrictions | None:
    """None: the bounds leave nothing."""
    try:
        return parse_restrictions([written(wish) for wish in fix], [written(wish) for wish in forbid])
    except InputError:
        return None


@given(
    st.lists(layouts(), min_size=1, max_size=8),
    st.lists(wishes(), max_size=4),
    st.lists(wishes(), max_size=3),
)
def test_they_allow_what_a_person_reads(some: list[Layout], fix: list[Wish], forbid: list[Wish]) -> None:
    limits = read(fix, forbid)
    said = [kept(layout, fix, forbid) for layout in some]
    if limits is None:
        assert not any(said)
        return
    columns = with_context_ways(QUESTION, LayoutColumns.of(some))
    assert limits.allows(columns).tolist() == said


@given(
    st.lists(wishes(), max_size=4),
    st.lists(wishes(), max_size=3),
    st.sets(st.sampled_from([*NUMBERS, "zero", "sp", "order", "recompute"])),
    st.sampled_from([None, "megatron", "torchtitan"]),
)
def test_they_read_back(fix: list[Wish], forbid: list[Wish], bare: set[str], trainer: str | None) -> None:
    words = [written(wish) for wish in fix], [*(written(wish) for wish in forbid), *sorted(bare)]
    try:
        limits = parse_restrictions(*words, trainer=trainer)
    except InputError:
        return
    assert parse_restrictions(limits.fix_words, limits.forbid_words, trainer=limits.trainer) == limits


def test_an_axis_that_is_left_out_has_its_usual_value() -> None:
    some = "tp2 pp2 vpp2 cp2 dp4 ep2 etp1 mbs2 zero1 shard4 sp order=tp-cp-pp-dp", "tp1"
    columns = LayoutColumns.of([parse_layout(text) for text in some])
    for axis in (*NUMBERS, "zero", "sp", "order"):
        assert parse_restrictions([], [axis]).allows(columns).tolist() == [False, True], axis


def test_a_layout_of_the_usual_way_is_within_what_names_it() -> None:
    limits = parse_restrictions(["context=ring"])
    for text in ("cp2 dp4", "cp2 dp4 context=ring", "dp8"):
        assert allowed_rows(QUESTION, limits, LayoutColumns.of([parse_layout(text)]))[0]
    assert not allowed_rows(QUESTION, limits, LayoutColumns.of([parse_layout("cp2 dp4 context=all-gather")]))[
        0
    ]


def test_what_cannot_be_read_says_why() -> None:
    for fix, forbid, what in [
        ("tpp>=2", "", "`tpp` is not part of a layout; did you mean `tp`?"),
        ("tp", "", "needs a value, like `tp=2` or `tp>=2`"),
        ("sp>=1", "", "`sp` is a switch, not a number"),
        ("order>=tp-cp-dp-pp", "", "`order` is a choice: write `order=tp-cp-dp-pp`"),
        ("order=tp-cp-pp-dpp", "", "did you mean `tp-cp-pp-dp`?"),
        ("context=rings", "", "did you mean `ring`?"),
        ("tp=0", "", "must be above zero"),
        ("", "context", "say which, like `context=ring`"),
        ("", "tp>=1", "no value of `tp` is left"),
    ]:
        assert what in refusal(parse_restrictions, [fix] if fix else [], [forbid] if forbid else [])


def test_words_that_contradict_are_refused() -> None:
    for fix, forbid, where, hint in [
        (["tp=8", "tp=4"], [], "--fix tp=8 --fix tp=4", "`--fix tp=8,4` allows either"),
        (["tp8", "tp2,4"], [], "--fix tp8 --fix tp2,4", "`--fix tp=8,2,4` allows either"),
        (["tp=8", "tp<=4"], [], "--fix tp=8 --fix tp<=4", "every one of them"),
        (["tp=8"], ["tp=8"], "--fix tp=8 --forbid tp=8", "every one of them"),
        (["cp=2"], ["cp"], "--fix cp=2 --forbid cp", "every one of them"),
        (["sp", "sp=0"], [], "--fix sp --fix sp=0", "every one of them"),
        (["pp=2", "pp=4"], [], "--fix pp=2 --fix pp=4", "`--fix pp=2,4` allows either"),
        (["recompute=full"], ["recompute"], "--fix recompute=full --forbid recompute", "every one of them"),
        ([], ["zero0", "zero=1,2,3"], "--forbid zero0 --forbid zero=1,2,3", "every one of them"),
    ]:
        with pytest.raises(InputError, match="contradict") as caught:
            parse_restrictions(fix, forbid)
        assert [problem.where for problem in caught.value.problems] == [where]
        assert caught.value.hint.startswith(hint)


def test_stacks_offer_what_they_have() -> None:
    core = small_question(8, stack="megatron-core")
    assert not check(core, parse_layout("tp2 pp2 dp2 order=tp-pp-dp-cp"))
    ring, old = change(core, stack={"context_kinds": ("ring",)}), small_question(8, stack="megatron-2021")
    for asked, text, what in (
        (ring, "pp2 cp2 dp2 order=tp-pp-cp-dp", "cannot seat its ranks in `order=tp-pp-cp-dp`"),
        (ring, "cp2 dp4 context=all-gather", "has no `context=all-gather`"),
        (old, "cp2 dp4", "`megatron-2021` cannot split a sequence over ranks (`cp2`)"),
        (old, "dp8 zero1 shard4", "shards over all 8 ranks of dp x cp, not over `shard4`"),
    ):
        (problem,) = check(asked, parse_layout(text))
        assert what in problem.what


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_a_bound_holds_for_its_own_value_and_both_neighbours(comparison: str) -> None:
    for axis in ("tp", "pp", "dp", "cp", "ep", "mbs"):
        columns = LayoutColumns.of([Layout(**{axis: own}) for own in (1, 2, 3)])
        for forbidden in (False, True):
            word = [f"{axis}{comparison}2"]
            limits = parse_restrictions([], word) if forbidden else parse_restrictions(word)
            said = [COMPARISONS[comparison](own, 2) != forbidden for own in (1, 2, 3)]
            assert limits.allows(columns).tolist() == said, word


def test_restrictions_to_one_layout_keep_what_else_was_asked() -> None:
    question = small_question()
    best = search(question, top=1).best
    limits = parse_restrictions(max_memory=0.95 * best.peak_bytes)
    found = search(question, top=1, restrictions=limits.fix_layout(question, best.layout)).best
    unplaced = {"layers": (), "recompute": ("none",)}
    assert found.layout.model_copy(update=unplaced) == best.layout.model_copy(update=unplaced)
    assert found.peak_bytes <= 0.95 * best.peak_bytes
    limits = parse_restrictions(forbid=["recompute=full"], max_memory=0.95 * best.peak_bytes)
    with pytest.raises(InfeasibleError, match=f"hint: {format_bytes(best.peak_bytes)} a GPU would do"):
        search(question, restrictions=limits.fix_layout(question, best.layout))


def test_a_space_is_shared_whatever_the_limit_of_memory() -> None:
    question, spaces = small_question(), SpaceCache()
    with spaces.shared():
        space = legal_space(question, Restrictions())
        assert legal_space(small_question(), Restrictions(max_memory=1e9)) is space
        assert legal_space(question, parse_restrictions(["tp=2"])) is not space
        assert legal_space(small_question(memory="2 GiB"), Restrictions()) is not space
    assert legal_space(question, Restrictions()) is not space


def test_a_space_is_shared_whatever_is_recomputed_and_how_surely_it_fits() -> None:
    question, spaces = small_question(), SpaceCache()
    with spaces.shared():
        space = legal_space(question, Restrictions())
        assert legal_space(question, Restrictions(forbidden_recompute=frozenset({"full"}))) is space
        surer = legal_space(replace(question, confidence=0.9), Restrictions(confidence=0.9))
    assert surer.cores is space.cores
    assert surer.question.confidence == 0.9


def test_a_budget_searches_for_an_answer_once() -> None:
    question, budget = small_question(), Budget()
    first = budget.search(question, Restrictions(), closes_with_ilp=False)
    again = budget.search(small_question(), Restrictions())
    assert budget.searches == 1
    assert again.estimates == first.estimates
    assert (first.certificate.settled, again.certificate.settled is None) == (None, False)
    budget.search(question, Restrictions(), top=2)
    assert budget.searches == 2


def test_what_is_searched_within_shared_spaces_is_what_is_found_alone() -> None:
    question, budget = small_question(memory="400 MiB"), Budget()
    for trainer in (None, "megatron"):
        for confidence in (0.5, 0.9, 0.5):
            asked = replace(question, confidence=confidence)
            limits = parse_restrictions(trainer=trainer)
            shared, alone = budget.search(asked, limits), search(asked, top=1, restrictions=limits)
            assert shared.estimates == alone.estimates


@pytest.fixture(scope="module")
def gpt3() -> Question:
    return ask("gpt3-175b", "dgx-a100-80gb", 1024, global_batch=1536, sequence_length=2048)


def test_sizes(gpt3: Question) -> None:
    for text, sizes in [
        ("64", (64,)),
        ("128, 64,64", (64, 128)),
        ("64..512", (64, 128, 256, 512)),
        ("64..300,8", None),
        ("48..200", (48, 96, 192, 200)),
        ("64..96:8", (64, 72, 80, 88, 96)),
        ("4..16", (4, 8, 16)),
    ]:
        if sizes is None:
            with pytest.raises(InputError, match="300 GPUs are no whole number of nodes"):
                parse_sizes(text, gpt3)
        else:
            assert parse_sizes(text, gpt3) == sizes


def test_even_ratios_are_whole_nodes_with_layouts(gpt3: Question) -> None:
    sizes = parse_sizes("64..16384x50", gpt3)
    assert 45 <= len(sizes) <= 50
    assert all(size % 8 == 0 and plain_layouts(gpt3, size)[1] for size in sizes)
    assert all(after / before < 1.35 for before, after in pairwise(sizes))
    assert sizes[0] == 64


def test_what_cannot_be_read(gpt3: Question) -> None:
    for text, said in [
        ("", "`` is not a number of GPUs"),
        ("64..8", "`64..8` runs from 64 down to 8"),
        ("8..64:0", "`8..64:0` takes steps of nothing"),
        ("8..9000000:8", "names 1,125,000 sizes; 1,000 are the most"),
        ("99999999999", "is more than there are; 10,000,000 are the most"),
    ]:
        assert said in refusal(parse_sizes, text, gpt3)


GPT = TransformerSpec(name="gpt-162b", num_layers=32, hidden_size=20480, num_heads=128, vocab_size=51200)
"""The model of section 5.4.1 of Narayanan et al. 2021, which compares degrees of tensor and pipeline parallelism."""


def published(batch: int = 32) -> Question:
    job = {"global_batch": batch, "sequence_length": 2048}
    return ask(GPT, "dgx-a100-80gb", 64, stack="megatron-2021", **job)


def test_the_best_tensor_group_of_the_published_study_fills_a_node() -> None:
    """Figure 13 there: 64 A100, tp x pp = 64, and tp8, the GPUs of a node, is best at both batches."""
    for batch in (32, 128):
        question = published(batch)
        steps = {
            tp: estimate(question, parse_layout(f"tp{tp} pp{64 // tp} dp1 mbs1 recompute=full")).step_seconds
            for tp in (2, 4, 8, 16, 32)
        }
        assert min(steps, key=steps.__getitem__) == 8
        assert steps[8] < steps[16] < steps[32]


def test_kernels_that_send_while_they_multiply_are_of_one_node() -> None:
    overlapping = change(published(), stack={"overlap_tensor_parallel": 0.5, "overlaps": ("tp",)})
    for words in ("tp{} pp{} dp1 mbs1", "tp{} pp{} dp1 mbs1 overlap=tp"):
        layouts = [parse_layout(words.format(tp, 64 // tp)) for tp in (8, 16)]
        hidden = time_terms(overlapping, LayoutColumns.of(layouts))["layer_forward"]["tp_hidden"]
        assert hidden[0] > 0
        assert hidden[1] == 0


def test_it_is_searched_where_asked_and_where_links_are_fast() -> None:
    """Both solvers agree on a cluster whose network is as fast as its nodes' links."""
    cluster = resolve_cluster("dgx-a100-80gb", 16)
    assert tensor_degrees(cluster) == [1, 2, 4, 8]
    model = MODEL.model_copy(update={"num_heads": 16, "num_kv_heads": 16})
    slow = ask(model, cluster, global_batch=8, sequence_length=256)
    asked = search(slow, top=1, restrictions=parse_restrictions(["tp=16"], ()))
    assert asked.best.layout.tp == 16
    links = cluster.links.model_copy(update={"inter_node": cluster.links.intra_node})
    fast = change(slow, cluster={"links": links})
    assert tensor_degrees(fast.cluster) == [1, 2, 4, 8, 16]
    limits = parse_restrictions(["tp>=4", "pp=1", "zero=1", "mbs=1"], ())
    found, again = (search(fast, top=1, restrictions=limits, proof=proof) for proof in ("search", "ilp"))
    assert found.best.step_seconds == pytest.approx(again.best.step_seconds)


def test_a_degree_over_nodes_is_not_selected_from_a_space_without_it() -> None:
    question, asked = published(), parse_restrictions(["tp=8,16"])
    alone = legal_space(question, asked)
    with SpaceCache().shared():
        assert max(legal_space(question, parse_restrictions()).cores.tp) == 8
        assert len(legal_space(question, asked)) == len(alone)
    assert set(alone.cores.tp.tolist()) == {8, 16}
