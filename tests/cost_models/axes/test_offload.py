"""Offload: what leaves the device, what hosts and drives hold, moves of a step, and STRONGHOLD's published steps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import get_args

import numpy as np
import pytest
from asking import ask, change
from hypothesis import given
from hypothesis import strategies as st

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, Layout, Offload, parse_layout
from cost_models.axes.offload.channels import (
    UNKNOWN_UPDATE,
    HostWindows,
    channel_seconds,
    exposed_seconds,
    host_windows,
    smallest_ring,
)
from cost_models.axes.offload.moves import MoveSpan, predicted_moves
from cost_models.axes.offload.residency import (
    Residency,
    Turn,
    drive_buffer_bytes,
    drive_bytes,
    host_bytes,
    over_residencies,
    residencies,
    states_on_device,
    turns_of_rank,
)
from cost_models.axes.words import EVERY
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.memory.device import usable_host_memory
from cost_models.memory.states import state_bytes
from cost_models.operators.parameters import parameters, total_parameters
from cost_models.pipeline.pricing import estimate, predicted_spans
from cost_models.pipeline.stage_costs import memory_terms
from cost_models.question import Question
from cost_models.specs.cluster import DriveSpec
from cost_models.specs.transformer import TransformerSpec

GPUS, BATCH, LAYERS = 16, 64, 48
STATES, STREAMED, PARKED = Offload(states=EVERY), Offload(streamed=EVERY), Offload(parked=EVERY)


def asked(gpus: int = GPUS, stack: str = "deepspeed") -> Question:
    """As many GPUs of a DGX V100 as asked for; hosts hold what they must and no buffers besides."""
    box = {"nodes": -(-gpus // 8), "gpus_per_node": min(8, gpus), "host_memory_bandwidth": None}
    cluster = catalog.load_cluster("dgx-v100").model_copy(update=box)
    job = {"global_batch": BATCH, "sequence_length": 1024, "precision": "fp16"}
    return ask("gpt2-xl", cluster, stack=stack, facts={"host_buffers": 1.0}, **job)


def one_row(layout: Layout) -> LayoutColumns:
    return LayoutColumns.of([layout])


def on_drives(offload: Offload, zero: int = 3) -> LayoutColumns:
    return one_row(Layout(dp=GPUS, zero=zero, offload=offload))


def test_what_stays_on_the_device_by_hand() -> None:
    """16-bit weights (2) and gradients (2), master weights and moments (12), 16 ranks; ZeRO-1, 2 and 3."""
    columns = LayoutColumns.of([Layout(dp=GPUS, zero=zero) for zero in (1, 2, 3)])
    wanted = {
        "resident": (2 + 2 + 12 / 16, 2 + 2 / 16 + 12 / 16, 16 / 16),
        "parked": (2 + 2, 2 + 2 / 16, 4 / 16),
        "states": (2 + 2, 2, 2 / 16),
        "streamed": (0, 0, 0),
    }
    for residency, each in wanted.items():
        assert states_on_device(asked(), columns, residency).total == pytest.approx(each)


@pytest.mark.parametrize(
    "offload", [NOWHERE, STATES, STREAMED, PARKED, Offload(states=3, parked=EVERY, streamed=7)]
)
def test_device_and_host_together_hold_every_byte(offload: Offload) -> None:
    """A rank's blocks have the same states wherever they live; a ring of buffers comes besides."""
    question = asked()
    here, there = (one_row(Layout(dp=GPUS, zero=1, offload=own, ring=2)) for own in (NOWHERE, offload))
    counts = parameters(question.model, there.tp)

    def on_device(columns: LayoutColumns) -> float:
        layer, rank = over_residencies(columns, totals(columns, counts.block))
        return float(LAYERS * layer[0] + rank[0])

    def totals(columns: LayoutColumns, size: Array) -> dict[str, Array]:
        return {at: states_on_device(question, columns, at).total * size for at in get_args(Residency)}

    away = host_bytes(question, there)[0] / 8
    ends = (counts.embedding + counts.head_vectors)[0]
    resident = state_bytes(question, there).total[0]
    kept_of_ends = over_residencies(there, totals(there, np.ones(1))).layer[0]
    assert on_device(there) + away - ends * (resident - kept_of_ends) == pytest.approx(on_device(here))


def test_a_step_on_the_cpu_by_hand() -> None:
    """ZeRO-Offload, table 4: CPU Adam takes 2.57 s for 10 B parameters; 16 GB/s of PCIe 3.0, all of one GPU: fp32
    gradients of the only microbatch, 16-bit weights."""
    question = asked(gpus=1)
    columns = one_row(Layout(offload=STATES, mbs=BATCH))
    held = total_parameters(question.model)
    channels = channel_seconds(question, columns)
    assert channels.update[0] == pytest.approx(held * UNKNOWN_UPDATE, rel=1e-3)
    assert (channels.down[0], channels.back[0], channels.up[0]) == pytest.approx(
        (held * 4 / 16e9, held * 2 / 16e9, 0), rel=1e-3
    )
    # they come after the passes but for gradients, which go down behind them
    waits = exposed_seconds(question, columns, np.array([100.0]))
    assert waits[0] == pytest.approx(channels.update[0] + channels.back[0])


def test_a_host_that_works_behind_the_passes() -> None:
    """What outlasts a share of them is waited for: max(0, (n - w) U - omega n g), with STRONGHOLD's letters."""
    question = asked(gpus=1, stack="stronghold")
    columns = one_row(Layout(mbs=BATCH, offload=Offload(streamed=40)))
    channels, share = channel_seconds(question, columns), question.hardware.host_overlap
    longest = channels.longest(overlaps=question.stack.drive.overlaps)[0]
    passes = np.array([0.4 * longest / share])
    assert exposed_seconds(question, columns, passes)[0] == pytest.approx(0.6 * longest)
    assert exposed_seconds(question, columns, 10 * passes)[0] == 0.0


@pytest.mark.parametrize("micro", [1, 2])
def test_what_streams_for_every_microbatch(micro: int) -> None:
    """Two GPUs share a link of 16 GB/s."""
    for stack, up, down, sums in [
        # 16-bit weights twice, the sum so far up and down again; fp32 once at the end
        ("deepspeed", 2 * 2 + 2, 2, 0),
        ("fsdp", 2 * 4, 4, 1),  # parameters are fp32, and so are gradients; the CPU adds them
    ]:
        question = asked(stack=stack)
        layout = Layout(dp=GPUS, zero=3, offload=STREAMED, mbs=micro)
        shard = total_parameters(question.model) / GPUS
        channels, count = channel_seconds(question, one_row(layout)), layout.microbatches(BATCH)
        last = 4 if stack == "deepspeed" else 0
        assert channels.up[0] == pytest.approx(count * up * shard / 8e9, rel=1e-3)
        assert channels.down[0] == pytest.approx((count * down + last) * shard / 8e9, rel=1e-3)
        updates = 1 + sums * (count - 1) * 12 / 28
        assert channels.update[0] == pytest.approx(updates * 8 * shard * UNKNOWN_UPDATE, rel=1e-3)


def test_gradients_that_wait_on_the_device_go_down_once() -> None:
    """`fully_shard` without a reduction until the last microbatch, as this project's executor runs it."""
    question = asked(stack="meshwright")
    columns = one_row(Layout(dp=GPUS, zero=3, offload=STREAMED))
    blocks = LAYERS * parameters(question.model, columns.tp).block[0]  # ends stay on the device
    assert channel_seconds(question, columns).down[0] == pytest.approx(4 * blocks / GPUS / 8e9, rel=1e-3)


def test_what_a_host_holds_by_hand() -> None:
    """48 blocks, an embedding and a norm at 12 bytes of optimizer states a parameter, on 8 of 16 ranks."""
    question = asked()
    columns = LayoutColumns.of([Layout(dp=GPUS, zero=zero, offload=STATES) for zero in (0, 1, 2, 3)])
    counts = parameters(question.model, columns.tp)
    rank = (LAYERS * counts.block + counts.embedding + counts.head_vectors)[0]
    wanted = [8 * rank * each for each in (12, 12 / 16, 14 / 16, 14 / 16)]
    assert host_bytes(question, columns) == pytest.approx(wanted)
    whole = one_row(Layout(dp=GPUS, zero=3, offload=STREAMED))
    assert host_bytes(question, whole)[0] == pytest.approx(8 * rank)
    assert not host_bytes(question, one_row(Layout(dp=GPUS, zero=1))).any()


def test_buffers_that_gradients_pass_through_by_hand() -> None:
    """Of `states` two of a block in fp32 for gradients and two in 16 bits for weights; of streamed blocks the former,
    as there are several microbatches. Each host has 8 ranks."""
    ours = asked(stack="meshwright")
    bare = change(ours, stack={"keeps_streamed_blocks": False})
    layouts = [
        Layout(dp=GPUS, zero=zero, offload=own) for own in (STATES, STREAMED, PARKED) for zero in (0, 1)
    ]
    columns = LayoutColumns.of(layouts)
    block = parameters(ours.model, columns.tp).block[0]
    staged = (host_bytes(ours, columns) - host_bytes(bare, columns)) / (8 * block)
    assert staged == pytest.approx([12, 12 / 16, 8, 8, 0, 0])
    one_pass = layouts[2].model_copy(update={"mbs": 4})
    assert host_bytes(ours, one_row(one_pass)) == pytest.approx(host_bytes(bare, one_row(one_pass)))


def test_gradients_of_streamed_blocks_are_on_the_device_while_blocks_run_backward() -> None:
    """The ring is of weights alone, and two blocks' gradients, in fp32, are beside it; a CPU has one."""
    question, layout = asked(stack="meshwright"), Layout(offload=STREAMED, ring=4)
    columns = one_row(layout)
    block = parameters(question.model, columns.tp).block[0]
    local = replace(question, cluster=resolve_cluster("local", 1))
    for one, buffers in ((question, 2), (local, 1)):
        terms = memory_terms(one, columns)
        assert terms["static"]["weights"] == pytest.approx(4 * 2 * block)
        assert terms["static"]["gradients"] == 0
        assert terms["working"]["gradients"][0] == pytest.approx(buffers * 4 * block)


@pytest.mark.parametrize("offload", [STATES, STREAMED])
def test_gradients_that_wait_for_the_last_microbatch_fill_the_device(offload: Offload) -> None:
    """Whole and in fp32, until `fully_shard` may scatter them; then the host has the shard."""
    question = asked(stack="meshwright")
    several, one = (
        one_row(Layout(dp=GPUS, zero=3, offload=offload, mbs=BATCH // GPUS // count)) for count in (4, 1)
    )
    residency = "states" if offload == STATES else "streamed"
    gradients = [states_on_device(question, each, residency).gradients[0] for each in (several, one)]
    assert gradients == [4.0, 0.0]
    blocks = LAYERS * parameters(question.model, several.tp).block[0]
    more = host_bytes(question, several)[0] - host_bytes(question, one)[0]
    assert more == pytest.approx(8 * 4 * blocks / GPUS)


def test_a_cpu_that_updates_has_weights_of_its_own() -> None:
    """In fp32 no master copy is among the states: moments (8) and the weights (4) that the update works on."""
    whole = change(asked(), training={"precision": "fp32"})
    layout = one_row(Layout(dp=GPUS, zero=1, offload=STATES))
    counts = parameters(whole.model, layout.tp)
    rank = (LAYERS * counts.block + counts.embedding + counts.head_vectors)[0]
    assert host_bytes(whole, layout)[0] == pytest.approx(8 * rank * 12 / 16)


READ, WRITE = 8e9, 4e9
ON_DRIVE = Offload(states=EVERY, drive=EVERY)
STREAMED_FROM_DRIVE = Offload(streamed=EVERY, drive=EVERY)


def with_drives(stack: str = "deepspeed", precision: str = "fp16") -> Question:
    """Two DGX V100 with drives; hosts hold what they must and no more."""
    drive = DriveSpec.model_validate({"capacity": "10 TB", "read": "8 GB/s", "write": "4 GB/s"})
    cluster = catalog.load_cluster("dgx-v100").model_copy(update={"nodes": 2, "drive": drive})
    job = {"global_batch": GPUS, "sequence_length": 1024, "precision": precision}
    return ask("gpt2-xl", cluster, stack=stack, facts={"host_buffers": 1.0}, **job)


@pytest.mark.parametrize("offload", [ON_DRIVE, STREAMED_FROM_DRIVE])
def test_deepspeed_has_states_and_fp32_gradients_there(offload: Offload) -> None:
    """fp32 weights (4), moments (8) and gradients (4) of a sixteenth each; a host has eight of these shares."""
    question, columns = with_drives(), on_drives(offload)
    whole = total_parameters(question.model)
    assert drive_bytes(question, columns)[0] == pytest.approx(16 * whole / 2, rel=2e-3)
    channels = channel_seconds(question, columns)
    assert channels.read[0] == pytest.approx(16 * whole / 2 / READ, rel=2e-3)
    assert channels.write[0] == pytest.approx(16 * whole / 2 / WRITE, rel=2e-3)


def test_what_lies_on_the_drive_is_not_in_memory() -> None:
    """But for four buffers of what a rank updates, which are smaller than a sub-group."""
    question = with_drives()
    here, there = (on_drives(own) for own in (ON_DRIVE._replace(drive=0), ON_DRIVE))
    buffers = 8 * drive_buffer_bytes(question, there)[0]
    assert buffers == pytest.approx(8 * 4 * 4 * total_parameters(question.model) / GPUS, rel=2e-3)
    assert host_bytes(question, here)[0] - host_bytes(question, there)[0] == pytest.approx(
        drive_bytes(question, there)[0] - buffers
    )


def test_our_executor_on_drives() -> None:
    for precision, offload, held, read in [
        ("fp16", ON_DRIVE, 12, 16),  # updated weights are read once more on their way up
        ("fp16", STREAMED_FROM_DRIVE, 12, 16),
        ("fp32", ON_DRIVE, 12, 16),
        ("fp32", STREAMED_FROM_DRIVE, 8, 8),  # weights that passes use are in memory
    ]:
        question, columns = with_drives("meshwright", precision), on_drives(offload, zero=1)
        blocks = drive_bytes(question, columns)[0] / held
        channels = channel_seconds(question, columns)
        assert channels.read[0] * READ / blocks == pytest.approx(read)
        assert channels.write[0] * WRITE / blocks == pytest.approx(held)


def test_a_drive_beside_the_update_hides_it_or_comes_on_top() -> None:
    columns, passes = on_drives(ON_DRIVE, zero=1), np.zeros(1)
    ours = with_drives("meshwright")
    channels = channel_seconds(ours, columns)
    drive = channels.read[0] + channels.write[0]
    assert drive > channels.update[0]
    assert exposed_seconds(ours, columns, passes)[0] == pytest.approx(drive)
    apart = change(ours, stack={"drive": ours.stack.drive.model_copy(update={"overlaps": False})})
    assert exposed_seconds(apart, columns, passes)[0] == pytest.approx(drive + channels.update[0])


def test_an_estimate_speaks_of_the_drive() -> None:
    found = estimate(with_drives(), Layout(dp=GPUS, zero=3, offload=ON_DRIVE))
    assert found.drive_limit == pytest.approx(9e12)
    assert 0 < found.drive_bytes < found.drive_limit
    assert found.verdict == "fits"
    full = replace(found, drive_limit=0.5 * found.drive_bytes)
    assert full.verdict == "does not fit: drive"
    assert not full.fits


def turns_of(resident: int, streamed: int, ring: int, microbatches: int = 1) -> list[Turn]:
    layout = parse_layout(f"mbs1 layers={resident + streamed} offload=streamed:{streamed} ring={ring}")
    return turns_of_rank(layout, [0], microbatches)


def test_the_ring_holds_what_runs() -> None:
    for resident, streamed, ring, microbatches in [*product((0, 2), (1, 5), (1, 2, 4), (1, 3))]:
        loaded: set[int] = set()
        for turn in turns_of(resident, streamed, ring, microbatches):
            for move in turn.before:
                assert move.what == "load"
                assert move.block not in loaded
                loaded.add(move.block)
            assert len(loaded) <= ring
            assert turn.use.block in loaded or turn.use.block < resident
            loaded -= {move.block for move in turn.after if move.what == "drop"}
        assert not loaded


def test_blocks_that_stay_are_the_first() -> None:
    layout = parse_layout("offload=states:1/parked:1/streamed:2")
    assert residencies(layout, 6) == ["resident", "resident", "states", "parked", "streamed", "streamed"]
    assert residencies(layout, 2) == ["streamed", "streamed"]
    assert residencies(parse_layout("offload=states:1/streamed"), 3) == ["states", "streamed", "streamed"]


MOVED_LAYOUTS = (
    "mbs2 zero0 offload=states:31",
    "mbs1 zero0 offload=streamed ring=3",
    "mbs8 zero0 recompute=full offload=streamed",
    "mbs2 zero0 offload=states:2/parked:4/streamed:6",
    "mbs2 zero0 offload=states/drive",
    "mbs1 pp2 vpp2 zero0 layers=10,10,10,10 offload=streamed:8/states:3 ring=2",
    "mbs1 dp2 zero3 offload=streamed:30",
)


def llama_with_drives(stack: str = "meshwright") -> Question:
    drive = DriveSpec.model_validate({"capacity": "8 TB", "read": "7 GB/s", "write": "4 GB/s"})
    cluster = catalog.load_cluster("hgx-h200").model_copy(update={"gpus_per_node": 2, "drive": drive})
    return ask("llama2-13b", cluster, stack=stack, global_batch=8, sequence_length=2048)


def moves_of(words: str, stack: str = "meshwright") -> tuple[MoveSpan, ...]:
    return predicted_moves(llama_with_drives(stack), parse_layout(words))


@pytest.mark.parametrize("stack", ["meshwright", "deepspeed"])
@pytest.mark.parametrize("words", MOVED_LAYOUTS)
def test_lanes_add_up_to_the_price(words: str, stack: str) -> None:
    busy: dict[tuple[int, str], list[MoveSpan]] = defaultdict(list)
    for move in moves_of(words, stack):
        busy[move.rank, move.lane].append(move)
    layout = parse_layout(words)
    channels = channel_seconds(llama_with_drives(stack), LayoutColumns.of([layout]))
    priced = {
        "down": channels.down + channels.park,
        "up": channels.up + channels.back,
        "update": channels.update,
        "drive": channels.read + channels.write,
    }
    for rank in range(layout.pp):
        for lane, seconds in priced.items():
            own = sorted(busy[rank, lane], key=lambda move: move.start)
            assert sum(move.end - move.start for move in own) == pytest.approx(float(seconds[0]))
            assert all(one.end <= other.start + 1e-9 for one, other in pairwise(own))  # one at a time


@pytest.mark.parametrize("words", MOVED_LAYOUTS)
def test_a_step_lasts_as_long_as_its_moves(words: str) -> None:
    """What is priced as one sum is what the moves make of it, where passes hide all that they can."""
    question, layout = change(llama_with_drives(), hardware={"host_overlap": 1.0}), parse_layout(words)
    ends = max(move.end for move in predicted_moves(question, layout))
    step = estimate(question, layout).step_seconds
    passes = max(span.end for span in predicted_spans(question, layout) if span.microbatch >= 0)
    assert max(ends, passes) == pytest.approx(step, rel=0.17)


def test_gradients_go_down_after_their_pass_and_before_their_update() -> None:
    moves = moves_of("mbs2 zero0 offload=states:31")
    passes = list(predicted_spans(llama_with_drives(), parse_layout("mbs2 zero0 offload=states:31")))
    last = max((span for span in passes if span.kind == "B"), key=lambda span: span.start)
    down = {move.block: move for move in moves if move.lane == "down"}
    update = {move.block: move for move in moves if move.lane == "update"}
    up = {move.block: move for move in moves if move.lane == "up"}
    assert set(down) == set(update) == set(up) == set(range(9, 40))
    for block in down:
        assert last.start < down[block].start < down[block].end <= update[block].start
        assert max(update[block].end, last.end) <= up[block].start


def test_activations_go_down_and_come_back() -> None:
    moves = list(moves_of("mbs4 zero0 recompute=full offload=activations"))
    assert {(move.lane, move.what) for move in moves} == {("down", "activations"), ("up", "activations")}
    assert len(moves) == 2 * 2 * 40


def test_weights_come_for_their_passes() -> None:
    """One load a block for the forward passes of a microbatch, one for the backward ones, but for those that stay."""
    loads = [
        move.block for move in moves_of("mbs8 zero0 recompute=full offload=streamed") if move.lane == "up"
    ]
    assert loads == [*range(40), *reversed(range(38))]
    again = [move.block for move in moves_of("mbs4 dp2 zero3 offload=streamed") if move.lane == "up"]
    assert sorted(again) == sorted(2 * list(range(40)))  # `fully_shard` keeps none


ONE_SEQUENCE = "mbs1 zero0 offload=streamed"


def on_one_gpu(sequence: int = 2048) -> Question:
    return ask("llama2-13b", "hgx-h200", 1, stack="stronghold", global_batch=8, sequence_length=sequence)


def windows(question: Question, layout: str = ONE_SEQUENCE) -> HostWindows:
    found = host_windows(question, estimate(question, parse_layout(layout)))
    assert found is not None
    return found


def test_rings_by_hand() -> None:
    for transfer, streamed, before, ring in [
        (0.5, 8, 0, 2),  # shorter than a pass: one computes, one comes
        (1.0, 8, 0, 2),
        (1.5, 3, 1, None),  # the first comes in 1.5 while the block before takes 1
        (1.5, 3, 2, None),  # they come at 1.5, 3.0 and 4.5; the third is wanted at 4, whatever the ring
        # at 1.25, 2.5, 3.75, 5.0; wanted at 2, 3, 4, 5: no buffer may wait for one to be free
        (1.25, 4, 2, 3),
        (2.0, 8, 0, None),
    ]:
        assert smallest_ring(1.0, transfer, streamed, before) == ring


@given(st.floats(0.1, 3.0), st.integers(1, 20), st.integers(0, 20))
def test_a_ring_of_two_suffices(transfer: float, streamed: int, before: int) -> None:
    ring = smallest_ring(1.0, transfer, streamed, before)
    if transfer <= 1 and streamed:
        assert ring == 2
    if ring is not None:
        assert 2 <= ring <= max(2, streamed)


def test_break_even_tokens_hide_what_they_say() -> None:
    """Beyond the tokens that break even a block's weights come faster than it computes."""
    now = windows(on_one_gpu())
    assert now.ring is None
    assert now.forward_tokens is not None
    assert now.transfer is not None
    enough = windows(on_one_gpu(1 << (int(now.forward_tokens) - 1).bit_length()))
    assert enough.ring == 2
    assert enough.transfer == pytest.approx(now.transfer)  # however many tokens there are


def test_what_binds_is_what_is_waited_for() -> None:
    assert windows(on_one_gpu()).binding in ("host link up", "host link down")
    long = on_one_gpu(8192)
    assert windows(long, "mbs4 zero0 recompute=full offload=streamed").binding == "nothing"
    # all passes would hide the updates, but they wait for the last microbatch's
    one = windows(long, "mbs1 zero0 recompute=full offload=streamed")
    assert one.late_hidden == pytest.approx(one.hidden / 8)
    assert (one.binding, one.update < one.hidden) == ("CPU update", True)
    slow = change(long, hardware={"host_update_seconds": 5e-9})
    assert windows(slow, "mbs4 zero0 recompute=full offload=streamed").binding == "CPU update"


BLOCK_SECONDS = (5.3400 - 0.0966) / 32
"""An iteration of Megatron's 32 blocks without its optimizer step: four passes of each, of which one is recomputed."""
UPDATE_SECONDS = 2.93e-9
"""A parameter in DeepSpeed's CPU Adam there: 5.02 s of 1.717 B, 7.38 s of 2.522 B."""
RUNS = {
    (100, 4): 25.4182, (16, 15): 2.6915, (24, 15): 4.1383, (32, 10): 6.7274, (32, 12): 6.4793, (32, 14): 6.3903,
    (32, 15): 5.9774, (32, 2): 7.935, (32, 4): 7.7207, (32, 6): 7.1949, (32, 8): 7.216, (40, 15): 7.9271,
    (48, 15): 10.0868, (56, 15): 11.8115, (64, 15): 14.1563, (78, 15): 17.6465, (92, 15): 21.0042,
}  # fmt: skip
"""(blocks, window) -> seconds of an iteration."""


@cache
def stronghold_question(blocks: int, stack: str = "stronghold") -> Question:
    shape = {"name": f"{blocks} blocks", "hidden_size": 2048, "num_heads": 16, "ffn_hidden_size": 8192}
    model = TransformerSpec.model_validate(
        shape | {"num_layers": blocks, "vocab_size": 50304, "max_positions": 1024, "positions": "learned"}
    )
    cluster = catalog.load_cluster("dgx-v100").model_copy(
        update={"nodes": 1, "gpus_per_node": 1, "host_memory": 90e9, "host_cores": 12}
    )
    job = {"global_batch": 4, "sequence_length": 1024, "precision": "fp32", "recompute": ("full",)}
    question = ask(model, cluster, stack=stack, **job)
    return change(question, hardware={"host_update_seconds": UPDATE_SECONDS})


def seconds(layout: Layout, blocks: int, stack: str = "stronghold") -> float:
    passes = np.array([0.75 * blocks * BLOCK_SECONDS])
    shown = exposed_seconds(stronghold_question(blocks, stack), LayoutColumns.of([layout]), passes)
    return float(blocks * BLOCK_SECONDS + shown[0])


def windowed(blocks: int, window: int) -> Layout:
    offload = Offload(streamed=blocks - window)
    return Layout(mbs=4, offload=offload, ring=window, layers=(blocks,), recompute=("full",))


def test_steps_of_every_window_and_depth() -> None:
    errors = [seconds(windowed(*run), run[0]) / measured - 1 for run, measured in RUNS.items()]
    assert np.abs(errors).max() < 0.055
    assert np.median(np.abs(errors)) < 0.02


@pytest.mark.parametrize(("blocks", "measured"), [(32, 10.7405), (48, 15.84)])
def test_steps_of_zero_offload(blocks: int, measured: float) -> None:
    layout = Layout(mbs=4, offload=Offload(states=EVERY), layers=(blocks,))
    assert seconds(layout, blocks, "deepspeed") == pytest.approx(measured, rel=0.06)


def fits(blocks: int, layout: Layout, stack: str) -> bool:
    question = stronghold_question(blocks, stack)
    held = host_bytes(question, LayoutColumns.of([layout]))[0]
    return held <= usable_host_memory(question.cluster) and estimate(question, layout).fits


def test_the_largest_models_are_those_published() -> None:
    """Blocks of STRONGHOLD's model that fit, within 6 %."""
    for stack, layout_of, most in [
        ("megatron-2021", lambda n: Layout(mbs=4, layers=(n,), recompute=("full",)), 32),
        ("stronghold", lambda n: windowed(n, 4), 100),
    ]:
        assert fits(round(0.94 * most), layout_of(round(0.94 * most)), stack)
        assert not fits(round(1.06 * most) + 1, layout_of(round(1.06 * most) + 1), stack)
