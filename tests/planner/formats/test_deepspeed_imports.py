"""DeepSpeed's JSON, read for a model that is named: what was exported comes back, what is odd is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tables import rows, unnamed

from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files.catalog import load_model
from cost_models.files.loading import resolve_cluster
from planner.formats.deepspeed import TARGET, read_deepspeed
from planner.formats.exporter import Job, nested, settings_of
from planner.formats.registry import reader_of
from planner.formats.settings import Reading, ReadOptions
from planner.formats.trainers import refusals

BASE = {"train_batch_size": 32, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}


def read(**more: Any) -> Reading:
    return read_deepspeed(BASE | more, load_model("llama3.1-8b"), ReadOptions(gpus=8, sequence=4096))


def test_two_batches_give_the_third() -> None:
    assert read().layout.brief == "tp1 pp1 dp8 mbs4 zero2"
    assert read(train_micro_batch_size_per_gpu=2).layout.mbs == 2
    assert "nothing is recomputed" in read().assumptions[0]
    sharded = read(zero_optimization={"stage": 3})
    assert (read().stack.overlap_gradient_reduce, sharded.stack.overlap_gradient_reduce) == (False, True)


def test_switches_of_2021_put_states_and_weights_on_the_host() -> None:
    older = {"cpu_offload": True, "cpu_offload_param": True}
    assert "offload=states" in str(read(zero_optimization={"stage": 2, **older}).layout)
    assert "offload=streamed" in str(read(zero_optimization={"stage": 3, **older}).layout)


def test_contradictions_are_named() -> None:
    for more, *named in rows("""
        {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4} | size: 32` | steps: 4` | dp8
        {"fp16": {"enabled": true}} | bf16.enabled | fp16.enabled
        {"train_batch_size": "auto"} | neither `train_batch_size` | --also
        {"zero_optimization": {"stage": "auto"}} | zero_optimization.stage: `auto` | --also
        {"optimizer": {"type": "Muon"}} | Muon | AdamW
        {"sequence_parallel_size": 3} | 8 GPUs | cp3
        {"train_batch_size": -1} | no whole number above zero
    """):
        with pytest.raises(InputError) as error:
            read(**json.loads(more))
        assert unnamed(str(error.value), *named) == [], more


def test_only_the_batch_of_a_file_for_transformers_is_asked_for() -> None:
    """`auto` of what changes no step is nothing; buckets follow from the model; the program's own names are read."""
    document = json.loads("""{
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "scheduler": {"params": {"total": "auto"}},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
        "gradient_clipping": "auto", "fp16": {"enabled": "auto"}
    }""")
    model = load_model("llama3.1-8b")
    for bf16 in ("auto", True):
        also = {"per_device_train_batch_size": 2, "gradient_checkpointing": True}
        file = document | {"bf16": {"enabled": bf16}}
        found = read_deepspeed(file, model, ReadOptions(gpus=8, sequence=4096, also=also))
        assert found.layout.brief == "tp1 pp1 dp8 mbs2 zero3 recompute=full"
        assert found.training.precision == "bf16"
        assert found.stack.collective_buffers == 2 * (4096**2 + 5e8)
        assert len(found.assumptions) == (bf16 == "auto")
    with pytest.raises(InputError, match="--also"):
        read_deepspeed(document, model, ReadOptions(gpus=8, sequence=4096))


def test_gpus_follow_from_three_batches() -> None:
    sizes = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    found = read_deepspeed(BASE | sizes, load_model("llama3.1-8b"), ReadOptions(sequence=4096))
    assert found.layout.dp == 8


def test_a_plan_that_offloads_on_one_gpu_is_exported_and_read_back() -> None:
    """ZeRO-3 there shards nothing, and is what its file needs."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    for sizes in ({"offload_param": None}, {}):
        document = {"train_batch_size": 4, "bf16": {"enabled": True}, "zero_optimization": zero | sizes}
        found = read_deepspeed(document, load_model("qwen3-14b"), ReadOptions(gpus=1, sequence=4096))
        layout = found.layout.model_copy(update={"zero": 0})
        job = Job(complete_question(found.model, resolve_cluster("gh200-quad", 1), found.training), layout)
        assert not refusals("deepspeed", job.question, layout)
        written = settings_of(TARGET.field_exports(job))
        assert written["zero_optimization.stage"] == 3
        again = read_deepspeed(nested(written), found.model, ReadOptions(gpus=1, sequence=4096))
        assert str(again.layout) == str(found.layout)


def test_states_in_16_bits_without_16_bit_weights_have_no_effect() -> None:
    reading = read(bf16={"enabled": True, "bf16_optimizer_states": True})
    assert reading.training.state_dtype == "fp32"
    assert "no effect of `bf16.bf16_optimizer_states: True`" in " ".join(reading.assumptions)


@pytest.mark.parametrize("text", [b"", b"[[[", b"\xff\xfe\x00"])
def test_a_json_that_cannot_be_read_is_nobodys(text: bytes, tmp_path: Path) -> None:
    """It was taken for TorchRec's: a recommender was said to have no sequences."""
    (tmp_path / "ds.json").write_bytes(text)
    with pytest.raises(InputError, match=r"ds\.json"):
        reader_of(str(tmp_path / "ds.json"))
