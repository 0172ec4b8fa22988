"""Names as people write them: other spellings, Hugging Face ids, a GPU or a model in the place of a cluster."""

from __future__ import annotations

import pytest

from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.files.models import resolve_model
from cost_models.files.names import known_cluster, known_model


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Llama-3.1-70B", "llama3.1-70b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("meta-llama/Llama-2-70b-hf", "llama2-70b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("openai-community/gpt2", "gpt2-small"),
        ("Llama 3.1 8B", "llama3.1-8b"),
        ("gpt3", "gpt3-175b"),
    ],
)
def test_a_model_goes_by_its_other_names(written: str, name: str) -> None:
    loaded = resolve_model(written)
    assert loaded.spec.name == name
    assert f"`{written}` is {name} of the catalogue" in loaded.assumptions


def test_every_name_is_its_own_and_no_two_are_spelt_alike() -> None:
    assert all(known_model(name) == known_model(name.upper()) == name for name in catalog.names("models"))
    assert all(
        known_cluster(name) == known_cluster(name.upper()) == name for name in catalog.names("clusters")
    )


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("meta-llama/Llama-9-70B", "unknown model `meta-llama/Llama-9-70B`; did you mean `llama3-70b`?"),
        ("meta-llama/Llama-9-70B", "give the folder with its config.json"),
        ("GPT3-175C", "did you mean `gpt3-175b`?"),
        ("dgx-h100", "`dgx-h100` is a cluster, not a model\nhint: write MODEL first, then CLUSTER"),
        ("./nowhere/config.json", "cannot read"),
    ],
)
def test_what_is_no_model(written: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_model(written)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "h100",
            "`h100` is a GPU, not a cluster; did you mean `dgx-h100`?\n"
            "hint: clusters of it: dgx-h100, aws-p5, llama3-pods, two-buildings, pcie-h100",
        ),
        ("A100", "did you mean `dgx-a100-80gb`?"),
        ("a100-sxm-40gb", "did you mean `dgx-a100-40gb`?"),
        ("llama3-8b", "`llama3-8b` is a model, not a cluster"),
        ("dgx-a100-80gb+dgx-h100", "without --gpus: dgx-a100-80gb:64+dgx-h100:64"),
        ("dgx-a100-80gb:32+dgx-h100", "does not say how many GPUs each pool has"),
        ("x", "unknown cluster `x`"),
        ("", "unknown cluster ``"),
    ],
)
def test_what_is_no_cluster(written: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_cluster(written)
    assert said in str(caught.value)


def test_a_cluster_may_say_its_size() -> None:
    assert resolve_cluster("dgx-h100:128") == resolve_cluster("DGX H100", 128)
    assert resolve_cluster("dgx-h100:128", 128).num_gpus == 128
    with pytest.raises(InputError, match="`dgx-h100:128` has 128 GPUs, --gpus says 64"):
        resolve_cluster("dgx-h100:128", 64)
    with pytest.raises(InputError, match="100 GPUs are no whole number"):
        resolve_cluster("dgx-h100:100")


def test_pools_without_sizes_are_told_how_to_say_them() -> None:
    with pytest.raises(InputError, match="dgx-a100-80gb:128\\+dgx-h100:128"):
        resolve_cluster("dgx-a100-80gb+dgx-h100", 256)
