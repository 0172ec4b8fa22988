"""The layout notation: it reads back to the same layout, wrong words are named, rules name what a stack has not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asking import ask, change
from calling import refusal
from hypothesis import given
from hypothesis import strategies as st
from tables import rows, unnamed

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, Offload, parse_layout
from cost_models.axes.stages import (
    blocks_by_policy,
    layers_up_to_shares,
    mix_of,
    policies_in,
    policy_of_blocks,
)
from cost_models.axes.words import EVERY
from cost_models.errors import InputError
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, ORDERS, RECOMPUTE_POLICIES
from planner.rules.legality import check
from planner.rules.stack import require_runnable

degrees = st.integers(1, 16)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout the notation can say, placed or not."""
    pp, vpp = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    chunked = {1: ["1f1b", "gpipe"], 2: ["interleaved", "zbv", "dualpipev"], 3: ["interleaved"]}
    stages = pp * vpp
    count = draw(st.sampled_from([1, stages]))
    fields = dict.fromkeys(("tp", "cp", "dp", "ep", "mbs"), degrees)
    fields |= dict.fromkeys(("etp", "shard"), st.one_of(st.none(), degrees))
    fields |= {"zero": st.integers(0, 3), "sp": st.booleans(), "order": st.sampled_from(ORDERS)}
    fields |= {"schedule": st.sampled_from([*chunked[vpp], "zero-bubble"])}
    fields |= {"context": st.sampled_from([None, *CONTEXTS])}
    sizes = st.lists(st.integers(0, 9), min_size=stages, max_size=stages)
    recompute = draw(st.lists(st.sampled_from(RECOMPUTE_POLICIES), min_size=count, max_size=count))
    layers = tuple(draw(st.one_of(st.just([]), sizes)))
    return Layout(
        pp=pp, vpp=vpp, recompute=tuple(recompute), layers=layers, **draw(st.fixed_dictionaries(fields))
    )


@given(layouts())
def test_the_notation_round_trips(layout: Layout) -> None:
    assert parse_layout(str(layout)) == layout
    # the order of words does not matter
    assert parse_layout(" ".join(reversed(str(layout).split()))) == layout


@given(st.lists(layouts(), min_size=1, max_size=5))
def test_columns_give_back_their_layouts(rows: list[Layout]) -> None:
    columns = LayoutColumns.of(rows)
    for index, layout in enumerate(rows):
        assert columns.layout(index) == layout.model_copy(update={"recompute": ("none",), "layers": ()})


def test_what_is_the_default_or_means_nothing_is_not_written() -> None:
    for text, written in rows("""
        tp8 pp16 vpp2 dp8 mbs1 zero1 sp recompute=selective | tp8 pp16 vpp2 dp8 mbs1 zero1 sp recompute=selective
        tp4 pp8 cp2 dp16 ep8 etp1 shard8 zero1 | tp4 pp8 cp2 dp16 ep8 etp1 mbs1 zero1 shard8
        tp4 cp2 dp4 etp4 shard8 zero1 | tp4 pp1 cp2 dp4 mbs1 zero1
        pp4 layers=12*3,11 recompute=full*2,none*2 | tp1 pp4 dp1 mbs1 zero0 recompute=full*2,none*2 layers=12*3,11
        pp4 schedule=1f1b | tp1 pp4 dp1 mbs1 zero0
        pp4 vpp3 schedule=interleaved | tp1 pp4 vpp3 dp1 mbs1 zero0
        pp4 schedule=zero-bubble | tp1 pp4 dp1 mbs1 zero0 schedule=zero-bubble
        pp4 schedule=zbv | tp1 pp4 vpp2 dp1 mbs1 zero0 schedule=zbv
        pp4 cp2 dp2 order=tp-pp-cp-dp context=ring | tp1 pp4 cp2 dp2 mbs1 zero0 order=tp-pp-cp-dp context=ring
        tp8 dp2 cp2 order=tp-pp-cp-dp | tp8 pp1 cp2 dp2 mbs1 zero0
        tp8 dp2 context=ring | tp8 pp1 dp2 mbs1 zero0
        dp2 overlap=dp | tp1 pp1 dp2 mbs1 zero0 overlap=dp
        tp2 pp2 dp2 sp overlap=dp,tp | tp2 pp2 dp2 mbs1 zero0 sp overlap=tp,dp
        dp2 overlap=none | tp1 pp1 dp2 mbs1 zero0 overlap=none
        cp2 overlap=dp,pp | tp1 pp1 cp2 dp1 mbs1 zero0 overlap=dp
        overlap=tp,pp,dp | tp1 pp1 dp1 mbs1 zero0
    """):  # fmt: skip
        assert str(parse_layout(text)) == written


def test_by_hand() -> None:
    layout = parse_layout("tp8 pp16 vpp2 dp8 mbs1 zero1 sp recompute=selective")
    assert (layout.num_gpus, layout.num_stages, layout.schedule) == (8 * 16 * 8, 32, "interleaved")
    assert (layout.stage_recompute, layout.microbatches(1536)) == (("selective",) * 32, 192)
    assert LayoutColumns.of([layout, parse_layout("dp4 mbs2")]).microbatches(1536).tolist() == [192, 192]
    assert parse_layout("tp=2 pp=2 layers=3,1").layers == (3, 1)
    hybrid = parse_layout("tp4 pp8 cp2 dp16 ep8 etp1 shard8 zero1")
    assert (hybrid.num_gpus, hybrid.data_ranks, hybrid.shard_group, hybrid.expert_tp) == (1024, 32, 8, 1)
    assert parse_layout("tp4 cp2 dp4 shard8").model_copy(update={"tp": 2, "dp": 8}).shard_group == 16
    assert parse_layout("tp8 pp4 dp2 order=tp-pp-cp-dp").order == "tp-cp-pp-dp"
    text = "tp8 pp4 dp2 mbs1 zero1 layers=10*2,30*2 pools=old*2,new*2"
    assert parse_layout(text).pools == ("old", "old", "new", "new")
    assert str(parse_layout(text)) == text


def test_wrong_words_are_named() -> None:
    for text, problem in [
        ("tp8 ddp2", "`ddp2`: not part of a layout"),
        ("zer1", "`zer1`: not part of a layout; did you mean `zero`?"),
        ("tp8 tp4", "`tp4`: `tp` is given twice"),
        ("tp0", "`tp`: must be above zero, not `0`"),
        ("zero4", "`zero`: must be at most 3, not `4`"),
        ("vpp2 schedule=1f1b", "schedule 1f1b does not go with vpp2"),
        ("schedule=interleaved", "schedule interleaved does not go with vpp1"),
        ("order=pp-tp-cp-dp", "`order`: "),
        ("pp2 layers=1,2,3", "layers names 3 stages; the layout has 2"),
        ("pp4 recompute=full,none", "recompute names 2 stages; the layout has 4"),
        ("layers=a", "`a` is not a list like `12*7,11`"),
        ("tp99999999999999999", "not part of a layout"),
        ("pp2 recompute=full:x", "`full:x` is not none / selective / full"),
        ("pp2 recompute=full:2/full", "names full twice"),
        ("pp2 recompute=full/selective", "leaves the number of blocks open for full and selective"),
        ("offload=weights:3", "is not a part like those of"),
        ("offload=states:", "is not a part"),
        ("offload=states/streamed", "states and streamed of every block"),
        ("ring=0", "ring"),
        ("dp2 overlap=dp,cp", "`cp` is none of tp, pp, dp, none"),
        ("pp4 pools=old,new", "pools names 2 ranks; the pipeline has 4"),
        ("pp2 dp2 pools=old,new replicas=old,new", "one of them"),
        ("dp3 replicas=old,new", "is not a layout"),
    ]:
        assert unnamed(refusal(parse_layout, text), problem, "hint: ") == []


COUNTS = st.tuples(*(st.integers(0, 9),) * 3)


@given(st.lists(COUNTS.filter(any), min_size=4, max_size=4))
def test_layouts_with_mixes_round_trip(stages: list[tuple[int, ...]]) -> None:
    layers = ",".join(str(sum(counts)) for counts in stages)
    recompute = ",".join(mix_of(counts) for counts in stages)
    layout = parse_layout(f"pp4 recompute={recompute} layers={layers}")
    assert parse_layout(str(layout)) == layout
    assert blocks_by_policy(layout.layers, layout.stage_recompute).tolist() == [list(c) for c in stages]


def test_mixes_by_hand() -> None:
    assert mix_of((5, 0, 3)) == "full:3"
    assert mix_of((0, 5, 3)) == "full:3/selective"
    assert mix_of((2, 5, 3)) == "full:3/selective:5"
    assert policies_in("full:3") == ("full", "none")
    assert policies_in("full:3/selective") == ("full", "selective")
    assert policy_of_blocks(4, "full:1/selective:2") == ("full", "selective", "selective", "none")


def test_a_mix_cannot_name_more_blocks_than_the_stage_has() -> None:
    with pytest.raises(InputError, match="names more blocks than the 2 of stage 0"):
        blocks_by_policy((2,), ("full:3",))


def test_stages_fill_to_shares() -> None:
    for blocks, stages, head, layers in [
        (24, 1, 2.5, (24,)),
        (24, 2, 2.45, (14, 10)),  # half of 26.45 is passed by the 14th block
        (24, 4, 2.45, (7, 7, 6, 4)),  # 6.6, 13.2, 19.8
        (24, 8, 2.45, (4, 3, 3, 4, 3, 3, 4, 0)),  # the last stage has the head alone
        (4, 2, 0.0, (3, 1)),  # a share is passed, not reached
    ]:
        assert layers_up_to_shares(blocks, stages, head) == layers


def test_words_of_offload_read_back() -> None:
    for words, wanted, ring in [
        ("", Offload(), 2),
        ("offload=streamed:28/states:4 ring=4", Offload(states=4, streamed=28), 4),
        ("offload=parked", Offload(parked=EVERY), 2),
        ("offload=streamed:3/states", Offload(states=EVERY, streamed=3), 2),
        ("offload=activations", Offload(activations=EVERY), 2),
        ("offload=states/drive", Offload(states=EVERY, drive=EVERY), 2),
        ("offload=states ring=3", Offload(states=EVERY), 2),  # without streamed weights there is no ring
    ]:
        layout = parse_layout(f"dp2 zero1 {words}")
        assert (layout.offload, layout.ring) == (wanted, ring)
        assert parse_layout(str(layout)) == layout
        assert LayoutColumns.of([layout]).layout(0) == layout


def on_two_gpus(*residencies: str) -> Question:
    """GPT-2 on two GPUs with a stack that has these."""
    facts = {"residencies": residencies}
    return ask("gpt2-small", "dgx-a100-80gb", 2, facts=facts, global_batch=8, sequence_length=1024)


def test_rules_name_what_a_rank_or_a_stack_has_not() -> None:
    for words, said in [
        ("offload=streamed:13", "moves 13 blocks of every rank; `pp1` gives a rank 12"),
        ("offload=streamed:3 ring=4", "more buffers than the 3 blocks"),
        ("offload=activations:3", "of all blocks move, or of none"),
        ("offload=states", "cannot keep `states` of a block in host memory"),
    ]:
        question = on_two_gpus("streamed", "activations")
        (problem,) = check(question, parse_layout(f"dp2 zero0 {words}"))
        assert said in problem.what
        assert not check(question, Layout(dp=2, offload=Offload(streamed=12, activations=EVERY)))


def on_four_gpus(stack: str) -> Question:
    job = {"global_batch": 8, "sequence_length": 1024, "recompute": ("none",)}
    return ask("gpt2-small", "dgx-a100-80gb", 4, stack=stack, **job)


def test_rules_name_what_a_stack_does_not_overlap() -> None:
    for stack, words, said in [
        ("meshwright", "dp4 zero2 overlap=dp", "has `overlap=dp` under `zero0` or `zero1` only"),
        ("meshwright", "pp2 vpp2 dp2 overlap=dp", "`schedule=interleaved` off a table"),
        ("meshwright", "tp2 sp dp2 overlap=tp", "cannot run tp communication behind compute"),
        ("meshwright", "dp4 zero1 overlap=dp offload=states", "of blocks in host memory"),
        ("megatron-2021", "dp4 overlap=dp", "cannot run dp communication behind compute"),
        ("megatron-core", "tp4 overlap=tp", "without `sp` there are none"),
    ]:
        (problem,) = check(on_four_gpus(stack), parse_layout(words))
        assert said in problem.what, problem.hint


def test_stacks_have_what_they_always_overlap_and_what_their_file_says() -> None:
    assert not check(on_four_gpus("meshwright"), parse_layout("pp2 dp2 zero1 overlap=pp,dp"))
    assert not check(on_four_gpus("megatron-core"), parse_layout("pp2 dp2 zero1 overlap=dp"))
    named = change(on_four_gpus("megatron-2021"), stack={"overlaps": ("dp",)})
    assert not check(named, parse_layout("dp4 overlap=dp"))


def test_tensors_overlap_on_gpus_alone() -> None:
    on_gpus = on_four_gpus("meshwright-compiled")
    layout = parse_layout("tp4 sp overlap=tp")
    assert not check(on_gpus, layout)
    (problem,) = check(replace(on_gpus, cluster=resolve_cluster("local", 4)), layout)
    assert "symmetric memory of GPUs" in problem.what
    with pytest.raises(InputError, match="cannot run tp communication"):
        require_runnable(on_four_gpus("megatron-core"), layout)  # whose plans run on the uncompiled executor
