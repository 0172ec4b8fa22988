"""A vision tower before a decoder, and parts left frozen: what they cost, and what is refused."""

from __future__ import annotations

import pytest

from cost_models.errors import InputError
from cost_models.specs.model.parts import decoder_of, frozen_parts, tower_of
from cost_models.specs.model.tower import Tower
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

TOWER = {"layers": 2, "hidden_size": 64, "num_heads": 4, "image": 56, "patch": 14, "class_token": True}


def model(tower: dict[str, object] | None = None, **more: object) -> TransformerSpec:
    fields = {
        "num_layers": 5,
        "hidden_size": 128,
        "num_heads": 4,
        "vocab_size": 512,
        "tied_embeddings": False,
    }
    own = Tower.model_validate(TOWER | (tower or {}))
    return TransformerSpec.model_validate(fields | {"tower": own} | more)


def job(**more: object) -> TrainingSpec:
    return TrainingSpec.model_validate({"global_batch": 8, "sequence_length": 128, "images": 2} | more)


def test_parts_are_models() -> None:
    whole = model()
    assert (tower_of(whole).num_layers, decoder_of(whole).num_layers) == (2, 3)
    assert (whole.tower.tokens, whole.tower.features) == (17, 16)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("freeze", "still", "through"),
    [
        (("tower",), "xx---", "..---"),
        (("tower", "projector"), "xx---", "..---"),
        (("language",), "--xxx", "--ppp"),
        (("tower", "language"), "xxxxx", "..ppp"),
        (("tower", "projector", "embedding", "first=2"), "xxxx-", "....-"),
        (("tower", "projector", "first=2"), "xxxx-", "..pp-"),
    ],
)
def test_frozen_blocks_before_which_nothing_is_trained_run_forward_alone(
    freeze: tuple[str, ...], still: str, through: str
) -> None:
    found = frozen_parts(model(), job(freeze=freeze))
    assert "".join("x" if one else "-" for one in found.blocks) == still
    states = zip(found.blocks, found.moved, strict=True)
    assert "".join("-" if not frozen else "p" if moved else "." for frozen, moved in states) == through


@pytest.mark.parametrize(
    ("tower", "more", "why"),
    [
        ({"layers": 5}, {}, "leaves no block of num_layers 5 to the decoder"),
        ({"image": 50}, {}, "image 50 is not a multiple of patch 14"),
        ({"merge": 3}, {}, "4 patches of a row are not a multiple of merge 3"),
        (
            {},
            {"window_pattern": ("window",) * 4, "attention_window": 8},
            "of the decoder: window_pattern names 4",
        ),
        ({}, {"further_tokens": 1}, "further_tokens does not go with tower"),
    ],
)
def test_contradictions_are_named(tower: dict[str, object], more: dict[str, object], why: str) -> None:
    with pytest.raises((InputError, ValueError)) as error:
        model(tower, **more)
    assert why in str(error.value)
