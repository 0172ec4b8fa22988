"""States in host memory: what leaves the device, what a host holds, and what a rank waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, Layout, Offload
from cost_models.axes.offload.channels import (
    UNKNOWN_UPDATE,
    channel_seconds,
    exposed_seconds,
    link_rate,
    update_seconds,
)
from cost_models.axes.offload.residency import (
    Residency,
    host_bytes,
    over_residencies,
    states_on_device,
    turns_of_rank,
)
from cost_models.axes.words import EVERY
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.memory.states import state_bytes
from cost_models.operators.parameters import parameters, total_parameters
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import memory_terms
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

GPUS, BATCH, LAYERS = 16, 64, 48
STATES, STREAMED, PARKED = Offload(states=EVERY), Offload(streamed=EVERY), Offload(parked=EVERY)


def asked(gpus: int = GPUS, stack: str = "deepspeed") -> Question:
    """As many GPUs of a DGX V100 as asked for; hosts hold what they must and no buffers besides."""
    box = {"nodes": -(-gpus // 8), "gpus_per_node": min(8, gpus), "host_memory_bandwidth": None}
    cluster = catalog.load_cluster("dgx-v100").model_copy(update=box)
    training = TrainingSpec(global_batch=BATCH, sequence_length=1024, precision="fp16")
    model = catalog.load_model("gpt2-xl")
    known = catalog.load_stack(stack).model_copy(update={"host_buffers": 1.0})
    return complete_question(model, cluster, training, stack=known)


def columns_of(*layouts: Layout) -> LayoutColumns:
    return LayoutColumns.of(layouts)


def test_what_stays_on_the_device_by_hand() -> None:
    """16-bit weights (2) and gradients (2), master weights and moments (12), 16 ranks; ZeRO-1, 2 and 3."""
    columns = columns_of(*[Layout(dp=GPUS, zero=zero) for zero in (1, 2, 3)])
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
    here, there = (
        columns_of(Layout(dp=GPUS, zero=1)),
        columns_of(Layout(dp=GPUS, zero=1, offload=offload, ring=2)),
    )
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


def test_torch_pins_gradients_in_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 XL, h 1600, sharded over 8: query and three like it 1.28 MB of fp32 in 2 MiB, the MLP's 5.12 MB in 8 MiB.
    Weights are pinned as large as they are; on a CPU, and under ZeRO-1, nothing is rounded."""
    question = asked(gpus=8, stack="meshwright")
    columns = columns_of(*[Layout(dp=8, zero=zero, offload=STREAMED) for zero in (1, 2, 3)])
    block = parameters(question.model, columns.tp).block[0]
    share = (4 * 2**21 + 2 * 2**23) / (12 * 1600**2 / 8 * 4) - 1
    pinned = host_bytes(question, columns)
    monkeypatch.setattr("cost_models.axes.offload.residency.is_own_host", lambda cluster: True)
    more = (pinned - host_bytes(question, columns)) / 8
    assert more == pytest.approx([0, *[share * 4 * 48 * block / 8] * 2], rel=1e-6)


def test_a_step_on_the_cpu_by_hand() -> None:
    """ZeRO-Offload, table 4: CPU Adam takes 2.57 s for 10 B parameters; 16 GB/s of PCIe 3.0, all of one GPU: fp32
    gradients of the only microbatch, 16-bit weights."""
    question = asked(gpus=1)
    columns = columns_of(Layout(offload=STATES, mbs=BATCH))
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
    columns = columns_of(Layout(mbs=BATCH, offload=Offload(streamed=40)))
    channels, share = channel_seconds(question, columns), question.hardware.host_overlap
    longest = channels.longest(overlaps=question.stack.drive.overlaps)[0]
    passes = np.array([0.4 * longest / share])
    assert exposed_seconds(question, columns, passes)[0] == pytest.approx(0.6 * longest)
    assert exposed_seconds(question, columns, 10 * passes)[0] == 0.0


@pytest.mark.parametrize(
    ("stack", "up", "down", "sums"),
    [
        (
            "deepspeed",
            2 * 2 + 2,
            2,
            0,
        ),  # 16-bit weights twice, the sum so far up and down again; fp32 once at the end
        ("fsdp", 2 * 4, 4, 1),  # parameters are fp32, and so are gradients; the CPU adds them
    ],
)
@pytest.mark.parametrize("micro", [1, 2])
def test_what_streams_for_every_microbatch(stack: str, up: int, down: int, sums: int, micro: int) -> None:
    """Two GPUs share a link of 16 GB/s."""
    question = asked(stack=stack)
    layout = Layout(dp=GPUS, zero=3, offload=STREAMED, mbs=micro)
    shard = total_parameters(question.model) / GPUS
    channels, count = channel_seconds(question, columns_of(layout)), layout.microbatches(BATCH)
    last = 4 if stack == "deepspeed" else 0
    assert channels.up[0] == pytest.approx(count * up * shard / 8e9, rel=1e-3)
    assert channels.down[0] == pytest.approx((count * down + last) * shard / 8e9, rel=1e-3)
    updates = 1 + sums * (count - 1) * 12 / 28
    assert channels.update[0] == pytest.approx(updates * 8 * shard * UNKNOWN_UPDATE, rel=1e-3)


def test_gradients_that_wait_on_the_device_go_down_once() -> None:
    """`fully_shard` without a reduction until the last microbatch, as this project's executor runs it."""
    question = asked(stack="meshwright")
    columns = columns_of(Layout(dp=GPUS, zero=3, offload=STREAMED))
    blocks = LAYERS * parameters(question.model, columns.tp).block[0]  # ends stay on the device
    assert channel_seconds(question, columns).down[0] == pytest.approx(4 * blocks / GPUS / 8e9, rel=1e-3)


def test_the_bandwidth_of_its_memory_sets_the_pace_of_a_host() -> None:
    question = asked()
    quick = replace(question, cluster=question.cluster.model_copy(update={"host_memory_bandwidth": 256e9}))
    assert update_seconds(quick) == pytest.approx(UNKNOWN_UPDATE, rel=0.02)  # a DGX-2's two sockets
    measured = replace(quick, hardware=quick.hardware.model_copy(update={"host_update_seconds": 3e-9}))
    assert update_seconds(measured) == 3e-9


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_offloading_takes_longer_and_needs_less(zero: int) -> None:
    each = (NOWHERE, STATES, STREAMED)
    priced = [estimate(asked(), Layout(dp=GPUS, zero=zero, layers=(LAYERS,), offload=one)) for one in each]
    peaks = [one.peak_bytes for one in priced]
    seconds = [one.step_seconds for one in priced]
    assert peaks == sorted(peaks, reverse=True)
    assert seconds[0] < min(seconds[1:])
    assert dict(priced[1].time)["offload"] > 0


def test_activations_leave_and_come_back() -> None:
    layout = Layout(dp=GPUS, zero=1, layers=(LAYERS,), mbs=4)
    away = layout.model_copy(update={"offload": Offload(activations=EVERY)})
    here, there = estimate(asked(stack="megatron-core"), layout), estimate(asked(stack="megatron-core"), away)
    kept = dict(here.rank_memory[0])["activations"]
    assert dict(there.rank_memory[0])["activations"] < 0.2 * kept
    assert there.peak_bytes < here.peak_bytes
    assert there.step_seconds >= here.step_seconds
    assert host_bytes(asked(stack="megatron-core"), columns_of(away), ["none"])[0] >= 8 * 0.8 * kept


def test_what_a_host_holds_by_hand() -> None:
    """48 blocks, an embedding and a norm at 12 bytes of optimizer states a parameter, on 8 of 16 ranks."""
    question = asked()
    columns = columns_of(*[Layout(dp=GPUS, zero=zero, offload=STATES) for zero in (0, 1, 2, 3)])
    counts = parameters(question.model, columns.tp)
    rank = (LAYERS * counts.block + counts.embedding + counts.head_vectors)[0]
    wanted = [8 * rank * each for each in (12, 12 / 16, 14 / 16, 14 / 16)]
    assert host_bytes(question, columns) == pytest.approx(wanted)
    whole = columns_of(Layout(dp=GPUS, zero=3, offload=STREAMED))
    assert host_bytes(question, whole)[0] == pytest.approx(8 * rank)
    assert not host_bytes(question, columns_of(Layout(dp=GPUS, zero=1))).any()


def test_a_host_holds_no_less_than_its_share_of_the_model() -> None:
    """Whatever the pipeline, the hosts together hold the optimizer states of every parameter once at least."""
    layouts = [Layout(pp=pp, dp=GPUS // pp, zero=int(pp < GPUS), offload=STATES) for pp in (1, 2, 4, 8, 16)]
    whole = 12.0 * total_parameters(asked().model)
    assert (2 * host_bytes(asked(), columns_of(*layouts)) >= whole).all()


def test_a_window_block_of_the_artifact_takes_24_bytes_a_parameter() -> None:
    """STRONGHOLD's logs (strongh2/sc22-ae, 32 blocks of 2048, fp32): allocated bytes grow by 24.000 a window block."""
    model = catalog.load_model("gpt2-xl").model_copy(
        update={"num_layers": 32, "hidden_size": 2048, "num_heads": 16}
    )
    question = replace(asked(gpus=1, stack="stronghold"), model=model)
    question = replace(question, training=question.training.model_copy(update={"precision": "fp32"}))
    windows = (2, 4, 6, 8, 10, 12, 14, 15)
    columns = columns_of(*[Layout(offload=Offload(streamed=32 - w), ring=w) for w in windows])
    counts = parameters(model, columns.tp)
    terms = memory_terms(question, columns)
    parts = ("weights", "gradients", "optimizer")
    held = sum(32 * terms["layer_static"][part] + terms["static"][part] for part in parts)
    each = np.diff(held) / np.diff(windows) / counts.block[0]
    assert each == pytest.approx(24.0, rel=1e-3)


def test_buffers_that_gradients_pass_through_by_hand() -> None:
    """Of `states` two of a block in fp32 for gradients and two in 16 bits for weights; of streamed blocks the former,
    as there are several microbatches. Each host has 8 ranks."""
    ours, bare = asked(stack="meshwright"), asked(stack="meshwright")
    bare = replace(bare, stack=bare.stack.model_copy(update={"keeps_streamed_blocks": False}))
    layouts = [
        Layout(dp=GPUS, zero=zero, offload=one) for one in (STATES, STREAMED, PARKED) for zero in (0, 1)
    ]
    columns = columns_of(*layouts)
    block = parameters(ours.model, columns.tp).block[0]
    staged = (host_bytes(ours, columns) - host_bytes(bare, columns)) / (8 * block)
    assert staged == pytest.approx([12, 12 / 16, 8, 8, 0, 0])
    one_pass = layouts[2].model_copy(update={"mbs": 4})
    assert host_bytes(ours, columns_of(one_pass)) == pytest.approx(host_bytes(bare, columns_of(one_pass)))


def test_gradients_of_streamed_blocks_are_on_the_device_while_blocks_run_backward() -> None:
    """The ring is of weights alone, and two blocks' gradients, in fp32, are beside it; a CPU has one."""
    question, layout = asked(stack="meshwright"), Layout(offload=STREAMED, ring=4)
    columns = columns_of(layout)
    block = parameters(question.model, columns.tp).block[0]
    local = replace(question, cluster=resolve_cluster("local", 1))
    for one, buffers in ((question, 2), (local, 1)):
        terms = memory_terms(one, columns)
        assert terms["static"]["weights"] == pytest.approx(4 * 2 * block)
        assert terms["static"]["gradients"] == 0
        assert terms["working"]["gradients"][0] == pytest.approx(buffers * 4 * block)


@pytest.mark.parametrize("ring", [1, 3, 60])
@pytest.mark.parametrize("micro", [1, 2])
def test_weights_come_as_often_as_the_window_says(ring: int, micro: int) -> None:
    question = asked(gpus=1, stack="meshwright")
    question = replace(question, training=question.training.model_copy(update={"global_batch": 4}))
    layout = Layout(offload=Offload(streamed=30), mbs=4 // micro, ring=min(ring, 30), layers=(LAYERS,))
    columns = columns_of(layout)
    turns = turns_of_rank(layout, [0], micro, at_once=True)
    loads = sum(move.what == "load" for turn in turns for move in (*turn.before, *turn.after))
    rate = link_rate(question, columns)[0]
    block = parameters(question.model, columns.tp).block[0]
    assert channel_seconds(question, columns).up[0] == pytest.approx(loads * 2 * block / rate)


def test_activations_on_the_host_are_those_that_a_placed_layout_keeps() -> None:
    question, layout = asked(stack="meshwright"), Layout(dp=GPUS, offload=Offload(activations=EVERY))
    none, full = (host_bytes(question, columns_of(layout), [policy])[0] for policy in ("none", "full"))
    assert full < 0.2 * none
    assert host_bytes(question, columns_of(layout))[0] == pytest.approx(full)


@pytest.mark.parametrize("offload", [STATES, STREAMED])
def test_gradients_that_wait_for_the_last_microbatch_fill_the_device(offload: Offload) -> None:
    """Whole and in fp32, until `fully_shard` may scatter them; then the host has the shard."""
    question = asked(stack="meshwright")
    several, one = (
        columns_of(Layout(dp=GPUS, zero=3, offload=offload, mbs=BATCH // GPUS // count)) for count in (4, 1)
    )
    residency = "states" if offload == STATES else "streamed"
    gradients = [states_on_device(question, each, residency).gradients[0] for each in (several, one)]
    assert gradients == [4.0, 0.0]
    blocks = LAYERS * parameters(question.model, several.tp).block[0]
    more = host_bytes(question, several)[0] - host_bytes(question, one)[0]
    assert more == pytest.approx(8 * 4 * blocks / GPUS)


def test_a_cpu_that_updates_has_weights_of_its_own() -> None:
    """In fp32 no master copy is among the states: moments (8) and the weights (4) that the update works on."""
    question = asked()
    whole = replace(question, training=question.training.model_copy(update={"precision": "fp32"}))
    layout = columns_of(Layout(dp=GPUS, zero=1, offload=STATES))
    counts = parameters(question.model, layout.tp)
    rank = (LAYERS * counts.block + counts.embedding + counts.head_vectors)[0]
    assert host_bytes(whole, layout)[0] == pytest.approx(8 * rank * 12 / 16)


def test_recomputed_activations_fill_no_host() -> None:
    question = asked(stack="megatron-core")
    columns = columns_of(Layout(dp=GPUS, zero=1, mbs=4, offload=Offload(activations=EVERY)))
    full = host_bytes(question.recomputing("full"), columns)[0]
    assert full < 0.2 * host_bytes(question.recomputing("none"), columns)[0]
