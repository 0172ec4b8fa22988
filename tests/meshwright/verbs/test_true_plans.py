"""Every plan that `plan` writes passes `verify`: all trainers, tasks, objectives, models, clusters, releases."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from command_line import SHOP
from effort import some_of

from cost_models.files.catalog import load_stack

EIGHT_B = "llama3.1-8b dgx-a100-40gb --gpus 8 --global-batch 16 --sequence 8192"
SMALL = "gpt2-small dgx-a100-80gb --gpus 8 --global-batch 64 --sequence 1024"
TINY = "gpt2-tiny dgx-a100-80gb --gpus 4 --global-batch 8 --sequence 64"
MIXED = "gpt2-tiny dgx-a100-80gb:8+dgx-h100:8 --global-batch 16 --sequence 64 --fix tp=1"
QUESTIONS = {
    "fastest": f"{SMALL} --pick fastest --top 9",
    "mfu": f"{TINY} --objective mfu",
    "memory": f"{TINY} --objective memory --fix pp=1",
    "cost": "gpt2-tiny dgx-a100-80gb --gpus 2..8 --global-batch 8 --sequence 64 --objective cost --price 2 --tokens 1B"
    " --deadline 30d --operations rsc1 --fix pp=1",
    "clusters": "gpt2-tiny dgx-a100-80gb,dgx-h100 --gpus 2,4 --global-batch 8 --sequence 64 --tokens 1B"
    " --price 1.5,2.5 --fix pp=1 --fix mbs=1",
    "fewest": "gpt2-medium dgx-h100 --global-batch 256 --sequence 1024 --gpus 8..32 --objective gpus --tokens 10B"
    " --deadline 12h --fix pp=1",
    "precisions": f"{TINY} --precision bf16,fp32",
    "neutral": f"{SMALL} --risk neutral --fix tp=1",
    "averse": f"{SMALL} --risk averse --fix tp=1",
    "program": f"{SMALL} --solver ilp --fix tp=1",
    "surely": f"{EIGHT_B} --confidence 95%",
    "less-memory": f"{EIGHT_B} --max-memory 30GiB",
    "stopped": f"{EIGHT_B} --time-limit 0.4",
    **{f"for-{one}": f"{EIGHT_B} --for {one}" for one in ("megatron", "nemo", "torchtitan", "deepspeed")},
    **{f"for-{one}": f"{EIGHT_B} --for {one}" for one in ("accelerate", "axolotl")},
    "memory-for-axolotl": f"{EIGHT_B} --for axolotl --objective memory",
    "sizes-for-axolotl": "llama3.1-8b dgx-a100-40gb --gpus 4,8 --for axolotl --global-batch 16 --sequence 2048"
    " --objective gpu-hours --tokens 1B",
    "lora": "llama3.1-8b pcie-4090 --gpus 2 --task lora --for axolotl --global-batch 32 --sequence 2048",
    "qlora": "qwen3-14b pcie-4090 --gpus 8 --task qlora --for axolotl --global-batch 16 --sequence 2048",
    "dpo": "llama3.2-1b dgx-a100-80gb --gpus 4 --task dpo --for deepspeed --global-batch 16 --sequence 2048",
    "lengths": "llama3.2-1b dgx-h100 --gpus 8 --for torchtitan --global-batch 64 --sequence 4096"
    " --lengths 'lognormal(600,1.2)'",
    "experts": "qwen3-30b-a3b dgx-h100 --gpus 32 --global-batch 256 --sequence 4096 --fix ep=8 --fix tp=1",
    "overlap": "llama3.2-1b dgx-a100-80gb --gpus 8 --global-batch 64 --sequence 2048 --stack meshwright --allow overlap"
    " --fix pp=1",
    "offload": "llama2-13b hgx-h200 --gpus 1 --global-batch 8 --sequence 2048 --stack meshwright --host-memory 128GiB"
    " --allow offload --fix mbs=1",
    "changes": "llama2-7b dgx-h100 --gpus 8 --global-batch 64 --sequence 8192 --allow parallel-block,window=2048,lamb"
    " --fix tp=2",
    "largest": "llama hgx-h200 --largest --gpus 1 --host-memory 128GiB --stack meshwright --fix mbs=1"
    " --fix recompute=full",
    "pools": f"{MIXED} --fix zero=1",
    "pools-for-megatron": f"{MIXED} --for megatron",
    "replicas": f"{MIXED} --fix pp=1 --allow replicas",
    "buildings": "llama3-8b two-buildings --gpus 4096 --global-batch 4096 --sequence 8192 --fix tp=1 --fix pp=1",
    "sharding": "shop.yaml dgx-h100 --gpus 2 --global-batch 8K",
    "torchrec": "dlrm-tiny dgx-h100 --gpus 2 --global-batch 4K --objective torchrec",
    "many-tables": "dlrm-dcnv2 dgx-h100 --gpus 8 --global-batch 64K",
    "restricted": "shop.yaml dgx-h100 --gpus 2 --global-batch 8K --fix table:0=row --together item,shelf.0 "
    "--forbid copy --max-memory 70GiB",
    "cache": "shop.yaml dgx-h100 --gpus 1 --serve --cache 64MiB",
    "hits": "shop.yaml dgx-h100 --gpus 1 --serve --hits 95% --policy lru --host-memory 32GiB --drive-rate 7GB/s",
}
USUAL = ("clusters", "replicas", "restricted", "cache", "hits")


@pytest.mark.parametrize("name", some_of([*QUESTIONS], *USUAL))
def test_a_plan_passes_its_own_proof(name: str, tmp_path, meshwright, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.yaml").write_text(SHOP)
    meshwright.done("plan", *shlex.split(QUESTIONS[name]), "--quiet", "-o", "plan.yaml")
    meshwright.done("verify", "plan.yaml")


def test_what_is_written_depends_on_no_prover(meshwright, tmp_path) -> None:
    """Nor does what is recommended: a trainer's own recompute, and a classical layout that it can run."""
    path = str(tmp_path / "plan.yaml")
    assert meshwright("plan", *shlex.split(QUESTIONS["lora"]), "--quiet", "-o", path)[0] == 0
    for solver in ("search", "ilp"):
        meshwright.done("verify", path, "--solver", solver)


PLANS = Path(__file__).parent / "earlier_plans"
OLDEST = PLANS / "released_22_november.yaml"
"""The release of commit 2f4e4183, whose prices have changed since."""
REST = sorted(path for path in PLANS.glob("*.yaml") if path != OLDEST)


@pytest.mark.parametrize("plan", REST, ids=lambda path: path.stem)
def test_a_plan_of_an_earlier_release_is_verified_and_explained(plan: Path, meshwright) -> None:
    verified = meshwright.done("verify", str(plan))
    assert "release 0.2.0 covered" in verified.said or plan.stem == "dlrm"
    meshwright.done("explain", str(plan))


def test_facts_that_are_no_longer_in_use_are_ignored_with_one_note(meshwright) -> None:
    for verb in ("explain", "verify"):
        answer = meshwright(verb, str(OLDEST))
        assert answer.code == (0 if verb == "explain" else 1), answer.err  # its step is another one today
        assert answer.err.count("of the plan's software stack no longer in use, ignored: ") == 1


@pytest.mark.parametrize("words", [["reshard", "tp1 pp1 dp8 mbs1 zero1"], ["export", "--to", "megatron"]])
def test_every_verb_that_reads_a_plan_names_the_ignored_facts(words: list[str], meshwright) -> None:
    answer = meshwright(words[0], str(OLDEST), *words[1:])
    assert answer.err.count("of the plan's software stack no longer in use, ignored: ") == 1


@pytest.mark.parametrize("fact", ["offloads", "some_fact"])
def test_a_fact_that_no_stack_has_is_refused_in_a_users_own_file(fact: str, tmp_path, meshwright) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(yaml.safe_dump(load_stack("fsdp").model_dump(mode="json") | {fact: True}))
    job = ["--gpus", "8", "--global-batch", "8", "--sequence", "1024"]
    assert f"unknown field `{fact}`" in meshwright.refusal(
        "estimate", "gpt2-xl", "dgx-h100", "--layout", "dp8", *job, "--stack", str(path)
    )
