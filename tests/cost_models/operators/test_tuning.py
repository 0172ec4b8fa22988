"""Adapters by hand, and a small model with adapters as torch counts it: parameters, FLOPs, bytes of states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from asking import ask, change
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.files import catalog
from cost_models.memory.states import state_bytes
from cost_models.operators.flops import forward_flops, model_flops
from cost_models.operators.parameters import missing_targets, parameters, trained_parameters
from cost_models.pipeline.stage_costs import memory_terms, time_terms
from cost_models.question import Question
from cost_models.specs.training import TuningSpec
from cost_models.specs.transformer import TransformerSpec

SIZES = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 1024}
BARE = dict.fromkeys(("tied_embeddings", "attention_bias", "attention_output_bias", "mlp_bias"), False)
KINDS = {"name": "small", "gated_mlp": True, "norm": "rmsnorm", "positions": "rotary"}
SMALL = TransformerSpec.model_validate(SIZES | BARE | KINDS)
SEQUENCE = 32


def asked(*, precision: str = "fp32", stack: str = "meshwright", **tuning: Any) -> Question:
    job = {"global_batch": 8, "sequence_length": SEQUENCE, "precision": precision}
    return ask(SMALL, "dgx-h100", stack=stack, tuning=TuningSpec(**tuning), **job)


def test_llama_by_hand() -> None:
    """Rank 16 on all matrices of Llama 3 8B trains 41,943,040 parameters, on q and v alone 6,815,744."""
    llama = catalog.load_model("llama3-8b")
    assert trained_parameters(llama, TuningSpec()) == 41_943_040
    assert trained_parameters(llama, TuningSpec(targets=("q", "v"))) == 6_815_744
    assert missing_targets(llama, ("q", "experts", "kv_a")) == ("experts", "kv_a")
    assert missing_targets(catalog.load_model("gpt2-xl"), ("gate", "mlp")) == ("gate",)


class Adapted(nn.Module):
    """A frozen matrix with an adapter beside it."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x) + self.up(self.down(x))
        return found


class Block(nn.Module):
    """The products of a block of `SMALL`, with all norms; the attention core is left out."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        h, kv, inner = SMALL.hidden_size, SMALL.kv_size, SMALL.ffn_hidden_size
        self.norms = nn.ModuleList([nn.RMSNorm(h).requires_grad_(False) for _ in range(2)])
        self.q, self.k, self.v = (Adapted(h, width, rank) for width in (h, kv, kv))
        self.o, self.gate, self.up = Adapted(h, h, rank), Adapted(h, inner, rank), Adapted(h, inner, rank)
        self.down = Adapted(inner, h, rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norms[0](x)
        # every projection reaches the sum, as it does through attention
        x = x + self.o(self.q(normed) + torch.cat([self.k(normed), self.v(normed)], dim=-1))
        normed = self.norms[1](x)
        summed: torch.Tensor = x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))
        return summed


class Small(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        h = SMALL.hidden_size
        self.embedding = nn.Embedding(SMALL.vocab_size, h).requires_grad_(False)
        self.blocks = nn.Sequential(*[Block(rank) for _ in range(SMALL.num_layers)])
        self.norm = nn.RMSNorm(h).requires_grad_(False)
        self.head = nn.Linear(h, SMALL.vocab_size, bias=False).requires_grad_(False)


def test_states_and_flops_as_torch_counts_them() -> None:
    rank = 8
    question = asked(rank=rank)
    model = Small(rank)
    hidden = model.embedding(torch.zeros(1, SEQUENCE, dtype=torch.int64)).requires_grad_()
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    with FlopCounterMode(display=False) as counted:
        model.head(model.norm(model.blocks(hidden))).sum().backward()
    optimizer.step()

    one = forward_flops(SMALL, SEQUENCE, 1)
    core = 3 * SMALL.num_layers * one.block_attention
    assert model_flops(SMALL, question.training) / 8 - core == counted.get_total_flops()

    held = {
        "weights": sum(own.nbytes for own in model.parameters()),
        "gradients": sum(own.grad.nbytes for own in model.parameters() if own.grad is not None),
        "optimizer": sum(
            state.nbytes for own in optimizer.state.values() for name, state in own.items() if name != "step"
        ),
    }
    terms = memory_terms(question, LayoutColumns.of([Layout()]))
    for part, size in held.items():
        priced = SMALL.num_layers * terms["layer_static"][part] + terms["embedding_static"][part]
        assert float((priced + terms["head_static"][part])[0]) == pytest.approx(size, rel=1e-12)


def test_tensor_ranks_split_adapters_as_their_matrices() -> None:
    """By hand: A of q whole and B split, A of o split and B whole; what all have is summed once a step."""
    question = asked(rank=8, targets=("q", "o"))
    h, columns = SMALL.hidden_size, LayoutColumns.of([Layout(tp=2)])
    counts = parameters(SMALL, columns.tp)
    states = state_bytes(question, columns)
    trained = 8 * h + 8 * h / 2 + 8 * h / 2 + 8 * h
    assert float((states.gradients * counts.block)[0]) == pytest.approx(4 * trained)
    assert time_terms(question, columns)["layer_sync"]["tp_comm"][0] > 0


@pytest.mark.parametrize(("base", "bits"), [("nf4", 4.127), ("int8", 8.5)])
def test_quantised_matrices(base: str, bits: float) -> None:
    """QLoRA's 4.127 bits a parameter, and a byte with an fp32 scale for each row of 64; norms stay as they are."""
    kept, plain = (asked(precision="bf16", base=own) for own in (base, None))
    columns = LayoutColumns.of([Layout()])
    matrices = float(parameters(SMALL, columns.tp).block[0]) - 2 * SMALL.hidden_size
    saved = [float(memory_terms(own, columns)["layer_static"]["weights"][0]) for own in (plain, kept)]
    assert 8 * (2 - (saved[0] - saved[1]) / matrices) == pytest.approx(bits, rel=0.015)
    seconds = [time_terms(own, columns)["layer_forward"]["compute"][0] for own in (plain, kept)]
    assert seconds[1] > seconds[0]


@pytest.mark.parametrize(
    ("optimizer", "each"), [("adamw-8bit", 2 + 8 / 256), ("adamw", 8.0), ("muon", 4.0), ("sgd", 0.0)]
)
def test_moments_of_optimizers(optimizer: str, each: float) -> None:
    question = asked(precision="bf16", stack="deepspeed")
    columns, kept = LayoutColumns.of([Layout()]), {}
    for name in ("sgd", optimizer):
        own = change(question, training={"tuning": None, "optimizer": name})
        kept[name] = memory_terms(own, columns)
        assert state_bytes(own, columns).optimizer[0] == state_bytes(own, columns, "experts").optimizer[0]
    blocks = [kept[name]["layer_static"]["optimizer"][0] for name in (optimizer, "sgd")]
    assert blocks[0] - blocks[1] == pytest.approx(each * float(parameters(SMALL, columns.tp).block[0]))
    if optimizer == "muon":  # embedding and head have Adam's two
        ends = [kept[name]["head_static"]["optimizer"][0] for name in (optimizer, "sgd")]
        head = parameters(SMALL, columns.tp)
        assert ends[0] - ends[1] == pytest.approx(8 * float((head.head_matrix + head.head_vectors)[0]))
