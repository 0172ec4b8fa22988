"""Bytes of a rank, and published formulas of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asking import ask, columns

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.axes.offload.residency import states_on_device
from cost_models.estimate import Estimate
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.memory.activations import activation_bytes, boundary_bytes
from cost_models.memory.device import communicators
from cost_models.memory.states import StateBytes, state_bytes
from cost_models.operators.flops import causal_flops, model_flops, recomputed_flops, utilisation
from cost_models.operators.parameters import parameters, total_parameters
from cost_models.operators.traffic import block_traffic
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import Precision, TrainingSpec
from cost_models.specs.transformer import TransformerSpec

D = 16
OPTIMIZER = 8 / D
MASTER = 4 / D


def states(
    stack: str,
    precision: Precision,
    *,
    residency: str = "resident",
    stages: tuple[int, ...] = (2, 3),
    state_dtype: str = "fp32",
) -> StateBytes:
    """Of ZeRO-2 and of ZeRO-3, over 16 ranks, unless said otherwise."""
    columns = LayoutColumns.of([Layout(dp=D, zero=zero, layers=(48,)) for zero in stages])
    job = {"global_batch": 64, "sequence_length": 1024, "precision": precision, "state_dtype": state_dtype}
    question = ask("gpt2-xl", "dgx-h100", D, stack=stack, **job)
    return states_on_device(question, columns, residency)


def test_weights_and_states() -> None:
    for stack, precision, weights, optimizer in [
        ("meshwright", "bf16", (2 + 4 / D, 4 / D), OPTIMIZER),
        ("meshwright", "fp32", (4 + 4 / D, 4 / D), OPTIMIZER),
        ("torchtitan", "bf16", (2 + 4 / D, 4 / D), OPTIMIZER),
        ("fsdp", "bf16", (2 + 4 / D, 4 / D), OPTIMIZER),
        ("deepspeed", "bf16", (2, 2 / D), MASTER + OPTIMIZER),
        ("deepspeed", "fp32", (4, 4 / D), OPTIMIZER),
    ]:
        held = states(stack, precision)
        assert held.weights == pytest.approx(weights)
        assert held.optimizer == pytest.approx([optimizer, optimizer])


def test_weights_of_a_job_that_keeps_16_bits_alone() -> None:
    found = states("torchtune", "bf16", stages=(0, 3), state_dtype="bf16")
    assert tuple(found.weights) == (2, 2 / D)
    assert tuple(found.gradients) == (2, 2 / D)
    assert tuple(found.optimizer) == (2 + 2, (2 + 2) / D)


@pytest.mark.parametrize(("stack", "bytes_written"), [("meshwright", 4), ("fsdp", 4), ("deepspeed", 2)])
def test_weights_that_a_step_writes(stack: str, bytes_written: float) -> None:
    """Shards in fp32 where they are the parameters, else 16-bit weights after their master copy."""
    assert states(stack, "bf16").updated == pytest.approx(bytes_written / D)


def test_gradients_are_sharded_where_each_microbatch_scatters_them() -> None:
    """DeepSpeed's of ZeRO-2 and 3 are; our own wait whole for the step's last microbatch."""
    each = states("deepspeed", "bf16", stages=(0, 1, 2, 3)).gradients
    assert each == pytest.approx(each[0] / [1, 1, D, D])
    assert states("meshwright", "bf16").gradients == pytest.approx((4, 4))


def test_zero_3_of_deepspeed_updates_so_many_parameters_at_a_time() -> None:
    """Of 3.4 billion on each of two ranks one billion is updated at a time, ZeRO-2's whole; a small one at once."""
    question = ask("llama2-7b", "dgx-h100", stack="deepspeed", global_batch=64, sequence_length=1024)
    parameters = total_parameters(question.model)
    for ranks in (2, 8):
        columns = LayoutColumns.of([Layout(dp=ranks, zero=zero, layers=(32,)) for zero in (2, 3)])
        shard = parameters / ranks
        held = state_bytes(question, columns).update * parameters
        assert held == pytest.approx([6 * shard, 6 * min(shard, 1e9)])


STREAM = 1024 * 1600 * 2.0
"""Bytes of the stream of a microbatch of GPT-2 XL in bf16."""


def boundary_bytes_of(stack: str, *layouts: str) -> tuple[Array, Array, Array]:
    """Bytes of every rank, of the first and of the last besides, of a batch of 16 sequences."""
    question = ask("gpt2-xl", "dgx-h100", 8, stack=stack, global_batch=16, sequence_length=1024)
    return boundary_bytes(question, columns(*layouts))


def test_a_rank_has_a_buffer_each_way() -> None:
    """Of its part of the stream with sequence parallelism; none without a pipeline."""
    every, first, last = boundary_bytes_of(
        "megatron-core", "pp4 dp2 mbs1", "tp2 pp4 dp1 mbs1 sp", "dp8 mbs1 zero1"
    )
    assert every == pytest.approx([2 * STREAM, STREAM, 0])
    assert not first.any()
    assert not last.any()


def test_torch_keeps_what_it_received_and_with_chunks_what_it_sent() -> None:
    """Eight microbatches of a stage: one tensor each. With two chunks a rank three for each stage, less the gradients
    that do not exist yet; the last rank sends nothing on and receives no gradients, the first sends none back."""
    every, first, last = boundary_bytes_of(
        "meshwright", "pp4 dp2 mbs1", "pp4 vpp2 dp2 mbs1", "pp4 dp2 mbs1 schedule=zero-bubble"
    )
    chunked = 3 * 2 * 8 - 2 * (4 + 1)
    split = 4 * 8 - (3 - 2) * 4
    np.testing.assert_allclose(every / STREAM, [8, chunked, split])
    np.testing.assert_allclose(first / STREAM, [0, -8, -2 * 8])
    np.testing.assert_allclose(last / STREAM, [-8, -2 * 8, -2 * 8])


TOKENS, WIDTH = 4096, 7168
MIXTURES = 58 / 61
ROWS = 8 * 2048 * MIXTURES
"""Numbers that a token's experts take between their products."""
LAYOUT = parse_layout("tp1 pp16 ep64 dp128 mbs1 zero1")


def deepseek_question(precision: str = "fp8", **facts: Any) -> Question:
    job = {"global_batch": 15360, "sequence_length": TOKENS, "precision": precision}
    return ask("deepseek-v3", "dgx-h100", stack="deepseek", facts={"always_discards": ()} | facts, **job)


def kept(precision: str = "fp8", **facts: Any) -> float:
    """Bytes a token and block."""
    return float(
        activation_bytes(deepseek_question(precision, **facts), LayoutColumns.of([LAYOUT])).block[0, 0]
        / TOKENS
    )


def test_a_token_keeps_less_by_hand() -> None:
    """The inputs of the first product of attention and of the mixture; those of the experts' second product."""
    for facts, bf16, fp8 in [
        ({"always_discards": ("norms",)}, 2 * WIDTH * (1 + MIXTURES), WIDTH * (1 + MIXTURES)),
        ({"always_discards": ("expert-activations",)}, 2 * ROWS, ROWS),
    ]:
        for precision, less in (("bf16", bf16), ("fp8", fp8)):
            assert kept(precision) - kept(precision, **facts) == pytest.approx(less, abs=1e-6)


def test_what_is_discarded_is_made_again_behind() -> None:
    """Two norms read and written, three passes over what experts' activations read and return."""
    columns = LayoutColumns.of([LAYOUT])
    plain, again = (
        block_traffic(deepseek_question(always_discards=facts), columns)
        for facts in ((), ("norms", "expert-activations"))
    )
    assert again.moved[0] == plain.moved[0]
    more = 2 * (2 * 2 * WIDTH + 3 * ROWS)
    assert (again.moved[1] - plain.moved[1]) / TOKENS == pytest.approx(more)


PLAIN = "dp8 mbs1 zero1"
SHARDED = "dp8 mbs1 zero3"
PIPED = "dp2 pp4 mbs1 zero2"


def question_of(stack: StackSpec, batch: int = 8, model: str = "llama2-7b", **cluster: Any) -> Question:
    machine = resolve_cluster("dgx-h100", 8).model_copy(update=cluster)
    return ask(model, machine, stack=stack, global_batch=batch, sequence_length=2048)


def changed(name: str, **fields: Any) -> StackSpec:
    return catalog.load_stack(name).model_copy(update=fields)


def priced(stack: StackSpec, layout: str, **more: Any) -> Estimate:
    question = question_of(stack, **more)
    return estimate(question, parse_layout(layout))


def part(one: Estimate, name: str) -> float:
    return one.rank_memory[one.fullest_rank][name]


def test_fragmentation_is_a_share_of_what_comes_and_goes() -> None:
    none, some = (priced(changed("megatron-core", fragmentation=share), PLAIN) for share in (0.0, 0.5))
    moving = part(some, "activations") + part(some, "working")
    assert part(none, "fragmentation") == 0
    assert part(some, "fragmentation") == pytest.approx(0.5 * moving, rel=1e-9)
    assert some.peak_bytes == pytest.approx(none.peak_bytes + 0.5 * moving, rel=1e-9)


def test_a_reserve_of_the_cluster_has_the_fragmentation_in_it() -> None:
    stack = changed("megatron-core", fragmentation=0.5)
    assert part(priced(stack, PLAIN, memory_reserve=0.1), "fragmentation") == 0


def test_each_axis_has_a_communicator_and_a_pipeline_two() -> None:
    layouts = columns("dp1", "dp8", "tp2 dp4", "pp2 dp4", "tp2 cp2 pp2 dp1", "dp8 ep2")
    assert communicators(layouts).tolist() == [0, 1, 2, 3, 5, 2]


def test_streams_of_their_own_keep_what_they_gathered_and_reduced() -> None:
    shared = changed("torchtitan", fully_shard=False, fragmentation=1e-9)
    apart = changed("torchtitan", fragmentation=1e-9)
    gradients = 4.0 * 6.74e9 / 8  # of a step's only microbatch, in fp32, there before they are made
    more = part(priced(apart, SHARDED), "fragmentation") - part(priced(shared, SHARDED), "fragmentation")
    assert more == pytest.approx(gradients + 2 * 2.0 * 32000 * 4096 + 0.28e9, rel=0.08)


def test_stages_keep_whole_gradients_until_the_last_microbatch() -> None:
    own = catalog.load_stack("torchtitan")
    each, late = (priced(changed("torchtitan", torch_pipelining=piped), PIPED) for piped in (False, True))
    assert own.torch_pipelining
    assert part(late, "gradients") == pytest.approx(2 * part(each, "gradients"), rel=1e-9)


def test_a_compiled_loss_keeps_logits_in_16_bits() -> None:
    logits = 4 * 2048.0 * 128256
    eager, compiled = (
        priced(
            changed("torchtitan", fused_loss=fused, fragmentation=0.1),
            SHARDED.replace("mbs1", "mbs4"),
            model="llama3-8b",
            batch=32,
        )
        for fused in (False, True)
    )
    assert part(eager, "working") - part(compiled, "working") == pytest.approx(8 * logits, rel=0.05)
    freed = part(eager, "fragmentation") - part(compiled, "fragmentation")
    assert freed == pytest.approx(2 * logits + 0.1 * 8 * logits, rel=0.05)


AHEAD = "tp8 dp1 mbs4 zero0 sp"
HIDDEN = 2 * 4 * 2048 * 4096
"""Bytes of a tensor of s·b·h in 16 bits."""


def held_back(layout: str, **more: Any) -> float:
    """Bytes that are only held back: the rest of the fragmentation is the same."""
    one, other = (
        part(priced(changed("nanotron", records_streams=known), layout, **more), "fragmentation")
        for known in (True, False)
    )
    return one - other


def test_what_collectives_hold_grows_until_the_queue_of_launches_is_full() -> None:
    """Two reduced tensors for each block ahead, and for those of the backward pass before it; 1,024 launches in all."""
    alone, many = held_back(AHEAD, batch=4), held_back(AHEAD, batch=64)
    assert 20 < alone / (2 * HIDDEN) < 32  # of 32 blocks
    assert alone <= many < 1.5 * alone
    assert held_back("tp8 dp1 mbs8 zero0 sp", batch=64) == pytest.approx(2 * many)


def test_a_stage_holds_back_no_more_than_its_passes() -> None:
    """Eight blocks forward and eight of the microbatch before."""
    assert held_back("tp2 pp4 dp1 mbs4 zero0 sp", batch=64) == pytest.approx(2 * HIDDEN * (8 + 8))


def test_recomputed_scores_are_in_flight_with_their_gradients() -> None:
    """An eager core's block holds its scores' gradients, and a copy that a mask is written into."""
    stack = changed("megatron-core", fragmentation=0.0)
    flash, eager = (
        part(
            priced(stack.model_copy(update={"attention": kernel}), "tp8 dp1 mbs8 zero0 recompute=full"),
            "working",
        )
        for kernel in ("flash2", "unfused")
    )
    scores = 2 * 8 * 2048 * 2048 * 32 / 8
    assert eager - flash > 2 * scores


A100_PEAK = 312e12


def gpt(layers: int, hidden: int, heads: int) -> TransformerSpec:
    return TransformerSpec(
        num_layers=layers, hidden_size=hidden, num_heads=heads, vocab_size=51200, max_positions=2048
    )


def question(model: TransformerSpec, *, attention: str = "fused-softmax", batch: int = 8) -> Question:
    job = {"global_batch": batch, "sequence_length": 2048, "dropout": 0.1}
    return ask(model, "dgx-a100-80gb", stack="megatron-2021", facts={"attention": attention}, **job)


def test_a_gpt_block_has_12_h_squared_plus_13_h_parameters() -> None:
    h = 12288
    block = parameters(gpt(96, h, 96), np.array([1])).block[0]
    assert block == 12 * h**2 + 13 * h


def test_model_and_hardware_flops_are_equation_3() -> None:
    h, layers, s, batch, vocabulary = 12288, 96, 2048, 1536, 51200
    model, training = gpt(layers, h, 96), TrainingSpec(global_batch=batch, sequence_length=s)
    useful = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    assert model_flops(model, training) == pytest.approx(useful, rel=1e-12)
    full = Layout(pp=8, dp=16, recompute=("full",), layers=(12,) * 8)
    spent = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h))
    assert model_flops(model, training) + recomputed_flops(model, training, full) == pytest.approx(
        spent, rel=1e-12
    )


def test_mfu_and_hfu_of_selective() -> None:
    """Korthikanti et al. 2022, table 5, whose step times are rounded to 0.01 s.

    The paper's equation 8 counts the attention core three more times under selective recompute (s/3h instead of s/6h).
    The core runs forward once more, so what we call hardware FLOPs adds a third of that.
    """
    for layers, hidden, heads, gpus, batch, seconds, mfu, hfu in [
        (48, 6144, 64, 8, 4, 1.10, 41.5, 43.7),
        (96, 12288, 96, 64, 64, 13.75, 51.4, 52.8),
        (105, 20480, 128, 280, 280, 37.83, 56.0, 57.0),
        (128, 25600, 160, 512, 512, 71.49, 56.3, 57.0),
    ]:
        model = gpt(layers, hidden, heads)
        training = TrainingSpec(global_batch=batch, sequence_length=2048)
        selective = Layout(recompute=("selective",), layers=(layers,))
        useful = model_flops(model, training)
        again = recomputed_flops(model, training, selective)
        assert (
            recomputed_flops(model, training, selective, ("norms", "latent-heads")) == 0
        )  # a dense GPT has neither
        assert 100 * utilisation(useful, seconds, gpus, A100_PEAK) == pytest.approx(mfu, abs=0.2)
        assert 100 * utilisation(useful + 3 * again, seconds, gpus, A100_PEAK) == pytest.approx(hfu, abs=0.2)


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("sp", [False, True])
def test_activation_bytes_are_korthikanti_table_2(tp: int, sp: bool) -> None:
    if sp and tp == 1:
        pytest.skip("sequence parallelism needs tensor parallelism")
    s, b, h, a = 2048, 4, 6144, 64
    asked = question(gpt(48, h, a))
    kept = activation_bytes(asked, LayoutColumns.of([Layout(tp=tp, sp=sp, mbs=b)])).block[0]
    core = 5 * a * s / (h * tp)
    outside = 10 / tp if sp else 10
    assert kept[0] == pytest.approx(s * b * h * (outside + 24 / tp + core), rel=1e-12)
    assert kept[1] == pytest.approx(s * b * h * (outside + 24 / tp), rel=1e-12)
    assert kept[2] == pytest.approx(2 * s * b * h / (tp if sp else 1), rel=1e-12)


def test_a_flash_kernel_keeps_what_selective_recompute_keeps_and_one_row_of_sums() -> None:
    s, b, h, a = 2048, 1, 6144, 64
    layout = LayoutColumns.of([Layout(mbs=b)])
    flash = activation_bytes(question(gpt(48, h, a), attention="flash2"), layout).block[0]
    fused = activation_bytes(question(gpt(48, h, a)), layout).block[0]
    assert flash[0] == pytest.approx(fused[1] + 4 * a * s * b, rel=1e-12)


def test_causal_mfu_counts_what_a_mask_leaves() -> None:
    """GPT-3: half of 4·s·h a token and block; within a window what the window leaves of it."""
    model = catalog.load_model("gpt3-175b")
    training = TrainingSpec(global_batch=8, sequence_length=2048)
    scores = 3 * 8 * 96 * 4 * 2048**2 * 12288
    assert model_flops(model, training) - causal_flops(model, training) == pytest.approx(scores / 2)
    windowed = model.model_copy(update={"attention_window": 512})
    left = 512 * (1 - 512 / 2048 / 2) / 512
    scores = 3 * 8 * 96 * 4 * 2048 * 512 * 12288
    masked = model_flops(windowed, training) - causal_flops(windowed, training)
    assert masked == pytest.approx(scores * (1 - left))
