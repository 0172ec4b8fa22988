"""YAML of accelerate and of axolotl, read for a model that is named: told apart, with what is odd named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tables import rows

from cost_models.axes.layout import parse_layout
from cost_models.errors import InputError
from cost_models.files.catalog import load_model
from cost_models.specs.training import TuningSpec
from planner.formats.exporter import nested
from planner.formats.fsdp2 import read_accelerate, read_axolotl
from planner.formats.settings import Reading, ReadOptions, also_settings, table_of

FSDP = {"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {"fsdp_version": 2}}
AXOLOTL = {"base_model": "m", "sequence_len": 4096, "micro_batch_size": 2, "gradient_accumulation_steps": 4}
AXOLOTL |= {"bf16": "auto"}


def accelerate(also: str = "", **more: Any) -> Reading:
    document = FSDP | {"mixed_precision": "bf16"} | nested(more)
    options = ReadOptions(sequence=4096, also=also_settings(also))
    return read_accelerate(document, load_model("llama3.1-8b"), options)


def axolotl(**more: Any) -> Reading:
    return read_axolotl(AXOLOTL | nested(more), load_model("llama3.1-8b"), ReadOptions(gpus=8))


def test_batches_are_of_the_program_and_sharding_of_the_file() -> None:
    read = accelerate("--per-device-train-batch-size=2 --gradient_accumulation_steps 4 --lr 1")
    assert read.layout.brief == "tp1 pp1 dp8 mbs2 zero3"
    assert read.training.global_batch == 64
    mesh = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 4}
    assert accelerate(parallelism_config=mesh).layout.shard == 4
    assert accelerate().assumptions[0].startswith("`--per_device_train_batch_size 1`")


def test_older_names_of_axolotl_are_read() -> None:
    older = {"fsdp_version": 2, "fsdp_reshard_after_forward": False, "fsdp_offload_params": True}
    read = axolotl(fsdp_config=older, gradient_checkpointing=True)
    assert (read.layout.zero, read.layout.recompute) == (2, ("full",))
    assert read.layout.offload.streamed
    assert read.training.global_batch == 64
    assert axolotl().layout.zero == 0


def test_adapters_of_axolotl_are_read() -> None:
    modules = ["q_proj", "down_proj"]
    read = axolotl(adapter="lora", lora_r=8, lora_alpha=16, lora_target_modules=modules, load_in_8bit=True)
    assert read.training.tuning == TuningSpec(rank=8, targets=("q", "down"), base="int8", alpha=16)
    linear = axolotl(adapter="qlora", lora_r=4, lora_target_linear=True, load_in_4bit=True)
    assert linear.training.tuning == TuningSpec(rank=4, base="nf4")
    assert axolotl(optimizer="adamw_bnb_8bit").training.optimizer == "adamw-8bit"


READ: dict[str, Callable[..., Reading]] = {"accelerate": accelerate, "axolotl": axolotl}


def test_what_is_not_priced_is_named() -> None:
    for name, more, named in rows("""
        accelerate | {distributed_type: "NO"} | 8 processes
        accelerate | {mixed_precision: fp8} | fp8
        accelerate | {parallelism_config: {parallelism_config_tp_size: 3}} | tp3
        accelerate | {also: --gradient_accumulation_steps many} | many
        accelerate | {also: "--gradient_accumulation_steps '4"} | no closing quotation
        accelerate | {distributed_type: MEGATRON_LM} | MEGATRON_LM
        axolotl | {gradient_checkpointing: offload} | offload
        axolotl | {plugins: [my.own.Plugin]} | my.own.Plugin
        axolotl | {context_parallel_size: 2, sequence_parallel_degree: 4} | said twice
        axolotl | {adapter: lora} | needs `lora_r`
        axolotl | {adapter: lora, lora_r: 8} | says no modules
        axolotl | {adapter: lora, lora_r: 8, lora_target_modules: [qkv]} | qkv
        axolotl | {adapter: llama-adapter} | llama-adapter
        axolotl | {rl: dpo} | rl: dpo
        axolotl | {tensor_parallel_size: 2} | needs FSDP
        axolotl | {fsdp_config: {fsdp_sharding_strategy: NO_SHARD}, context_parallel_size: 2} | FSDP that shards
        axolotl | {micro_batch_size: few} | no whole number above zero
        axolotl | {fsdp_config: {fsdp_version: full}} | fsdp_version: full
        axolotl | {adapter: lora, lora_r: 8, lora_target_linear: true, lora_dropout: 4} | dropout
    """):
        with pytest.raises(InputError, match=named):
            READ[name](**yaml.safe_load(more))


def test_every_dialect_is_read_as_its_trainer_reads_it() -> None:
    """Null is nothing, older names are names, FSDP 1 shards as FSDP 2, and both programs have DeepSpeed beside FSDP."""
    for name, more, layout in rows(
        """
        axolotl | {deepspeed: null, fsdp: null, fsdp_config: {offload_params: null}} | dp8 mbs2 zero0
        axolotl | {fsdp: [full_shard, auto_wrap]} | dp8 mbs2 zero3
        axolotl | {fsdp: shard_grad_op auto_wrap offload} | dp8 mbs2 zero2 offload=streamed
        axolotl | {fsdp_config: {fsdp_sharding_strategy: NO_SHARD}} | dp8 mbs2 zero0
        axolotl | {fsdp_config: {activation_checkpointing: true}} | dp8 mbs2 zero3 recompute=full
        axolotl | {fsdp_config: {version: 2}, sequence_parallel_degree: 2} | cp2 dp4 mbs2 zero3
        axolotl | {fsdp_version: 2, fsdp_config: {use_orig_params: true}, expert_parallel_size: 2} | dp8 ep2 mbs2 zero3
        axolotl | {deepspeed: {zero_optimization: {stage: 2}, bf16: {enabled: auto}}} | dp8 mbs2 zero2
        accelerate | {fsdp_config: {fsdp_sharding_strategy: 2}} | dp8 mbs1 zero2
        accelerate | {fsdp_config: {sharding_strategy: HYBRID_SHARD}, num_machines: 2} | dp8 mbs1 zero3 shard4
        accelerate | {fsdp_config: {fsdp_version: 1, fsdp_offload_params: null}} | dp8 mbs1 zero3
        accelerate | {distributed_type: DEEPSPEED} | dp8 mbs1 zero2
        accelerate | {distributed_type: DEEPSPEED, deepspeed_config: {zero_optimization: {stage: 1}}} | dp8 mbs1 zero1
        accelerate | {distributed_type: DEEPSPEED, deepspeed_config: {HOST}} | dp8 mbs1 zero3 offload=streamed
    """.replace("HOST", "zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: cpu")
    ):
        found = READ[name](**yaml.safe_load(more)).layout.model_copy(update={"layers": ()})
        assert found == parse_layout(f"tp1 pp1 {layout}"), more


def test_every_optimizer_of_transformers_is_priced_or_named() -> None:
    """By its whole name: a variant that the table lacks is refused with its name, and none passes for another."""
    row = table_of("axolotl").arguments["optimizer"]
    for name, ours in row.synonyms.items():
        assert axolotl(optimizer=name).training.optimizer == ours
        assert accelerate(f"--optim {name}").training.optimizer == ours
        for variant in (f"{name}_layerwise", f"paged_{name}_2bit"):
            with pytest.raises(InputError, match=variant):
                axolotl(optimizer=variant)


def test_the_optimizer_of_a_program_is_deepspeeds_where_its_file_has_none() -> None:
    config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}
    read = axolotl(deepspeed=config, optimizer="adamw_torch_8bit")
    assert read.training.optimizer == "adamw-8bit"
    assert not any("names no optimizer" in one for one in read.assumptions)
    named = accelerate("--optim adamw_torch_8bit", distributed_type="DEEPSPEED")
    assert named.training.optimizer == "adamw-8bit"
    own = config | {"optimizer": {"type": "SGD"}}
    assert axolotl(deepspeed=own).training.optimizer == "sgd"


def test_a_loss_without_whole_logits_is_priced_so() -> None:
    cce = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
    liger = "axolotl.integrations.liger.LigerPlugin"
    said = [
        {"liger_fused_linear_cross_entropy": True, "plugins": [liger]},
        {"plugins": [cce]},
        {"plugins": [cce], "cut_cross_entropy": False},
    ]
    read = [axolotl(**more) for more in said]
    assert [one.stack.loss_chunk for one in read] == [2048, 2048, None]
    assert not any("plugins" in words for one in read for words in one.assumptions)
    assert accelerate("--use_liger_kernel").stack.loss_chunk == 2048
