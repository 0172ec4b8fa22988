"""Names as people write them: other spellings, Hugging Face ids, a GPU or a model in the place of a cluster."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from tables import rows

from cost_models.errors import InputError, did_you_mean, similar_names
from cost_models.files import catalog, read_data
from cost_models.files.loading import known_name, resolve_cluster, resolve_model

MODELS = """
    meta-llama/Llama-3.1-70B | llama3.1-70b | meta-llama/Meta-Llama-3-8B-Instruct | llama3-8b
    meta-llama/Llama-2-70b-hf | llama2-70b | mistralai/Mixtral-8x7B-Instruct-v0.1 | mixtral-8x7b
    Qwen/Qwen3-235B-A22B | qwen3-235b-a22b | deepseek-ai/DeepSeek-V3 | deepseek-v3
    openai-community/gpt2 | gpt2-small | Llama 3.1 8B | llama3.1-8b
    gpt3 | gpt3-175b | Qwen/Qwen2.5-7B | qwen2.5-7b
    Qwen/Qwen2.5-Coder-32B-Instruct | qwen2.5-32b | meta-llama/Llama-3.3-70B-Instruct | llama3.1-70b
    deepseek-ai/DeepSeek-R1 | deepseek-v3 | deepseek-ai/DeepSeek-V3.1 | deepseek-v3
    deepseek-ai/DeepSeek-R1-Distill-Qwen-14B | qwen2.5-14b | microsoft/phi-4 | phi-4
    tiiuae/falcon-40b-instruct | falcon-40b | facebook/opt-13b | opt-13b
    EleutherAI/gpt-j-6B | gpt-j-6b | 01-ai/Yi-1.5-34B-Chat | yi-34b
    codellama/CodeLlama-34b-hf | codellama-34b | google-bert/bert-base-uncased | bert-base
    mistralai/Mistral-Nemo-Base-2407 | mistral-nemo-12b | google/gemma-2b-it | gemma-2b
    google/gemma-2-2b-it | gemma2-2b | bigscience/bloom-7b1 | bloom-7b1
"""


def test_a_model_goes_by_its_other_names() -> None:
    cells = list(chain.from_iterable(rows(MODELS)))
    for written, name in zip(cells[::2], cells[1::2], strict=True):
        loaded = resolve_model(written)
        assert loaded.spec.name == name
        assert f"`{written}` is {name} of the catalogue" in loaded.assumptions


KINDS: tuple[catalog.Kind, ...] = ("models", "gpus", "clusters", "stacks", "profiles", "operations")


@pytest.mark.parametrize("kind", KINDS)
def test_no_suggestion_is_another_size_release_or_family(kind: catalog.Kind) -> None:
    """Of a name with another number nothing is suggested but what it may be the beginning of; a slip of letters is
    mended."""
    names = catalog.names(kind)
    numbers = [re.findall(r"[\d.]*\d", name) for name in names]
    for name in names:
        for found in re.finditer(r"\d+", name):
            other = f"{name[: found.start()]}{int(found[0]) + 1}{name[found.end() :]}"
            suggested = re.search("mean `(.+)`", did_you_mean(other, similar_names(other, names)))
            if suggested and other not in names:
                begins = plain(suggested[1]).startswith(plain(other))
                assert begins or numbers[names.index(suggested[1])] == re.findall(r"[\d.]*\d", other), other
        swapped = name[:1] + name[2:3] + name[1:2] + name[3:]
        if swapped.isascii() and name[1:3].isalpha() and swapped not in names:
            assert plain(name) in map(plain, similar_names(swapped, names)), swapped


def plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name)


def test_every_other_name_means_what_the_catalogue_has() -> None:
    for written, name in read_data("names")["names"].items():
        assert name in (known_name(written, "models"), known_name(written, "clusters"))
        assert name in (*catalog.names("models"), *catalog.names("clusters"))


def test_every_name_is_its_own_and_no_two_are_spelt_alike() -> None:
    kinds: tuple[catalog.Kind, ...] = ("models", "clusters")
    for kind in kinds:
        for name in catalog.names(kind):
            assert known_name(name, kind) == known_name(name.upper(), kind) == name


def test_what_is_no_model() -> None:
    for written, said in rows("""
        meta-llama/Llama-9-70B | unknown model `meta-llama/Llama-9-70B`\\n
        meta-llama/Llama-9-70B | give the folder with its config.json
        GPT3-175C | did you mean `gpt3-175b`?
        dgx-h100 | `dgx-h100` is a cluster, not a model\\nhint: write MODEL first, then CLUSTER
        ./nowhere/config.json | cannot read
    """):
        with pytest.raises(InputError) as caught:
            resolve_model(written)
        assert said in str(caught.value)


def test_what_is_no_cluster() -> None:
    for written, said in rows("""
        h100 | `h100` is a GPU, not a cluster; did you mean `dgx-h100`?\\n
        h100 | hint: clusters of it: dgx-h100, aws-p5, llama3-pods, two-buildings, pcie-h100
        A100 | did you mean `dgx-a100-80gb`?
        a100-sxm-40gb | did you mean `dgx-a100-40gb`?
        llama3-8b | `llama3-8b` is a model, not a cluster
        dgx-a100-80gb+dgx-h100 | without --gpus: dgx-a100-80gb:64+dgx-h100:64
        dgx-a100-80gb:32+dgx-h100 | does not say how many GPUs each pool has
        x | unknown cluster `x`
        - | unknown cluster ``
    """):
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


@pytest.mark.parametrize(("cluster", "gpus", "number"), [("gb200-nvl72", 128, 3), ("dgx-h100", 12, 2)])
def test_sizes_and_clusters_that_a_hint_names_are_there(cluster: str, gpus: int, number: int) -> None:
    with pytest.raises(InputError, match="no whole number") as caught:
        resolve_cluster(cluster, gpus)
    named = re.findall(r"--gpus (\d+)|`([\w-]+)`", caught.value.hint)
    assert len(named) == number
    for size, other in named:
        assert resolve_cluster(other or cluster, int(size or gpus)).num_gpus == int(size or gpus)
