"""Diffusion transformers (DiT: Peebles and Xie 2022, arXiv 2212.09748): parameters, FLOPs, bytes, what is refused."""

from __future__ import annotations

import pytest
from calling import told

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.defaults import complete_question
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.memory.activations import activation_bytes
from cost_models.operators.flops import forward_flops, model_flops
from cost_models.operators.parameters import total_parameters
from cost_models.operators.record import boundary_elements
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec


def dit(name: str) -> TransformerSpec:
    return resolve_model(name).spec


@pytest.mark.parametrize(("name", "layers", "h", "p"), [("dit-xl-2", 28, 1152, 2), ("dit-b-4", 12, 768, 4)])
def test_parameters_by_hand(name: str, layers: int, h: int, p: int) -> None:
    block = 3 * h * h + 3 * h + h * h + h + 8 * h * h + 5 * h + 6 * h * h + 6 * h
    ends = 4 * p * p * h + h + (256 * h + h) + (h * h + h) + 1001 * h
    final = 2 * h * h + 2 * h + (h + 1) * 8 * p * p
    assert total_parameters(dit(name)) == layers * block + ends + final


def test_parameters_are_the_published_ones() -> None:
    """Those of the published code besides are fixed positions, 256 x 1152."""
    assert total_parameters(dit("dit-xl-2")) == 675_129_632 - 256 * 1152


@pytest.mark.parametrize(
    ("name", "tokens", "published"),
    [("dit-xl-2", 256, 118.64), ("dit-b-4", 64, 5.56), ("dit-xl-2", 1024, 524.6)],
)
def test_flops_are_those_of_the_paper(name: str, tokens: int, published: float) -> None:
    """Its tables 1 and 4 count multiply-adds of a forward pass of an image."""
    model = dit(name)
    assert model.diffusion is not None
    larger = model.diffusion.model_copy(update={"latent": round(tokens**0.5) * model.diffusion.patch})
    model = model.model_copy(update={"diffusion": larger})
    one = forward_flops(model, tokens)
    forward = model.num_layers * one.block + one.head
    assert forward / 2e9 == pytest.approx(published, rel=1e-3)
    step = model_flops(model, TrainingSpec(global_batch=8, sequence_length=tokens))
    assert step / 8 == pytest.approx(3 * forward, rel=1e-3)


def test_what_modulates_is_kept_and_handed_on() -> None:
    """Of a token what each half's vectors are multiplied with, two in a half; of an image the six vectors, and what
    they are made of before and behind SiLU. A plain encoder keeps all the rest."""
    model = dit("dit-b-4")
    plain = model.model_copy(update={"diffusion": None})
    job, columns = TrainingSpec(global_batch=8, sequence_length=64), LayoutColumns.of([Layout(mbs=8, pp=2)])
    cluster = resolve_cluster("dgx-h100", 2)
    modulated, bare = (complete_question(one, cluster, job) for one in (model, plain))
    more = activation_bytes(modulated, columns).block[0, 0] - activation_bytes(bare, columns).block[0, 0]
    assert more == pytest.approx(2 * 8 * (64 * 4 + 6 + 2) * 768)
    assert boundary_elements(modulated, columns)[0] == 8 * (64 + 1) * 768


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--sequence 1000", "1,000 tokens are no square of patches"),
        ("--task dpo", "is a diffusion transformer, for which preferences (--task dpo) have no price"),
        ("--lengths lognormal(100,0.5)", "for which documents of unlike length (--lengths) have no price"),
        ("--layout cp2", "is priced for whole ones alone"),
    ],
)
def test_what_has_no_price_is_refused(capsys: pytest.CaptureFixture[str], words: str, why: str) -> None:
    asked = ["estimate", "dit-b-4", "dgx-h100", "--gpus", "2", "--global-batch", "8", "--layout", "dp2"]
    answer = told(capsys, *asked, *words.split())
    assert answer.code == 2
    assert why in answer.err


def test_a_sequence_is_an_image(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "dit-xl-2", "dgx-h100", "--gpus", "8", "--global-batch", "256", "--samples", "1.28M"]
    answer = told(capsys, *words)
    assert answer.code == 0
    assert "(256 x 256, bf16)" in answer.out
    assert "each an image of 256 tokens" in answer.err
    assert "`run` refuses its modulated blocks" in answer.err
    assert "padded" not in answer.err


def test_contradictions_are_named() -> None:
    shape = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "diffusion": {"latent": 32, "patch": 2}}
    for more, why in (
        ({"diffusion": {"latent": 31}}, "latent 31"),
        ({"norm": "rmsnorm"}, "layer norms"),
        ({"tied_embeddings": True}, "tied_embeddings does not go with diffusion"),
    ):
        with pytest.raises(ValueError, match=why):
            TransformerSpec.model_validate(shape | more)
