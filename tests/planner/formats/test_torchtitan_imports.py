"""Configurations of TorchTitan, FSDP2 and DeepSpeed that are read as plans."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from calling import refusal
from tables import rows, unnamed

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files.catalog import load_model
from cost_models.files.loading import resolve_cluster
from cost_models.specs.training import TuningSpec
from planner.formats.deepspeed import TARGET, read_deepspeed
from planner.formats.exporter import Job, nested, settings_of
from planner.formats.fsdp2 import read_accelerate, read_axolotl
from planner.formats.registry import reader_of
from planner.formats.settings import Reading, ReadOptions, also_settings, table_of
from planner.formats.torchtitan import read_torchtitan
from planner.formats.trainers import refusals


def read(text: str, gpus: int | None = 8, *, also: str = "", name: str = "recipe.py") -> Reading:
    options = ReadOptions(gpus=gpus, also=also_settings(also))
    return read_torchtitan(textwrap.dedent(text), name, None, options)


def refused(text: str, gpus: int | None = 8, *, also: str = "", name: str = "recipe.py") -> str:
    return refusal(read, text, gpus, also=also, name=name)


REGISTRY = """
    from torchtitan.models.llama3 import model_registry
    from torchtitan.trainer import Trainer
    SEQUENCE = 8192

    def base(local=1, **more):
        training = TrainingConfig(local_batch_size=local, seq_len=SEQUENCE, steps=1_000)
        return Trainer.Config(optimizer=default_adamw(lr=3e-4), training=training, **more)

    def llama3_8b() -> Trainer.Config:
        return base(model_spec=model_registry("8B"), activation_checkpoint=SelectiveAC.Config())

    def llama3_70b():
        spec = model_registry("70B")
        mesh = ParallelismConfig(tensor_parallel_degree=8)
        return base(8, model_spec=spec, parallelism=mesh, activation_checkpoint=FullAC.Config())

    def llama3_405b():
        compiled = CompileConfig(enable=True, enable_async_tensor_parallel=True)
        fp8 = [Float8LinearConverter.Config(filter_fqns=["lm_head"], model_compile_enabled=compiled.enable)]
        config = base(2, model_spec=model_registry("405B", converters=fp8), compile=compiled)
        config.activation_checkpoint = FullAC.Config()
        config.parallelism.tensor_parallel_degree = 8
        config.training.steps = 3 * config.training.steps
        return config
"""
"""Figures of torchtitan's own recipes of Llama 3 (models/llama3/config_registry.py), put together in another way."""
RECIPES = {
    "8b": (64, "tp1 pp1 dp64 mbs1 zero3 recompute=selective"),
    "70b": (256, "tp8 pp1 dp32 mbs8 zero3 sp recompute=full"),
    "405b": (128, "tp8 pp1 dp16 mbs2 zero3 sp recompute=full"),
}


@pytest.mark.parametrize("size", RECIPES)
def test_llama_3_as_torchtitan_trains_it(size: str) -> None:
    """Its recipes in Python; its job files are priced with the other published commands."""
    gpus, brief = RECIPES[size]
    reading = read(REGISTRY, gpus, also=f"--config llama3_{size}")
    assert (reading.layout.brief, reading.model.name) == (brief, f"llama3.1-{size}")
    assert reading.training.global_batch == reading.layout.dp * reading.layout.mbs
    assert reading.training.precision == ("fp8" if size == "405b" else "bf16")
    assert reading.stack.compiled == (size == "405b") == (reading.stack.overlap_tensor_parallel > 0)
    assert reading.training.tokens == (3000 if size == "405b" else 1000) * reading.training.tokens_per_step


MESH = "config.parallelism"


def test_of_every_so_many_blocks_one_is_recomputed() -> None:
    """In a job file of a release before 0.3."""
    job = 'model.name = "llama3"\nmodel.flavor = "8B"\ntraining.batch_size = 2\ntraining.compile = true\n'
    job += 'activation_checkpoint.mode = "selective"\nactivation_checkpoint.selective_ac_option = "{}"'
    for option, policy in (("1", "full"), ("2", "full:16"), ("5", "full:7")):
        reading = read(job.format(option), name="job.toml")
        assert (reading.layout.mbs, reading.layout.recompute) == (2, (policy,))
        assert reading.stack.compiled


SMALL = """
    def plan():
        config = Trainer.Config(model_spec=model_registry("8B"))
        config.training.local_batch_size = 4
        config.training.seq_len = 4096
        {line}
        return config
"""


def test_what_a_recipe_says_and_leaves_out() -> None:
    parts = "Trainer.Config(training=TrainingConfig(), parallelism=ParallelismConfig(), "
    for line, also, brief in rows(
        """
        config.activation_checkpoint = None | - | tp1 pp1 dp8 mbs4 zero3
        pass | --activation_checkpoint.mode none | tp1 pp1 dp8 mbs4 zero3
        config.parallelism.data_parallel_replicate_degree = 4 | - | tp1 pp1 dp8 mbs4 zero3 shard2 recompute=selective
        config.parallelism.data_parallel_replicate_degree = 8 | - | tp1 pp1 dp8 mbs4 zero0 recompute=selective
        config.parallelism.pipeline_parallel_degree = 2 | - | tp1 pp2 dp4 mbs1 zero3 recompute=selective
        pass | --training.local_batch_size=2 | tp1 pp1 dp8 mbs2 zero3 recompute=selective
        if config.training.seq_len > 4000: {LOCAL} = 1 | - | tp1 pp1 dp8 mbs1 zero3 recompute=selective
    """.replace("{LOCAL}", "config.training.local_batch_size")
    ):
        assert read(_source(line).replace("Trainer.Config(", parts), also=also).layout.brief == brief


def test_tokens_of_a_rank_are_sequences() -> None:
    """The words after 0.3: tokens of a microbatch and of a step."""
    line = "config.training = TrainingConfig(num_tokens_per_microbatch_per_dp_rank=3 * 8192, max_context_length=8192)"
    reading = read(_source(line))
    assert (reading.layout.mbs, reading.training.sequence_length) == (3, 8192)
    assert reading.training.global_batch == 24
    line = line.replace("Config(", "Config(num_tokens_per_train_step=48 * 8192, ")
    assert read(_source(line)).training.global_batch == 48
    assert "no whole sequences" in refused(_source(line.replace("3 * 8192", "3 * 8192 + 1")))


def _source(line: str) -> str:
    return "from torchtitan.models.llama3 import model_registry\n" + textwrap.dedent(SMALL).format(line=line)


def test_stages_that_nobody_names_share_blocks_and_ends() -> None:
    """All blocks once, stages that differ by one where each end counts as so many blocks."""
    for blocks, pp, first, last, schedule in product(
        ("8B", "70B", "405B"), (2, 4, 8), range(3), range(3), ("1F1B", "Interleaved1F1B")
    ):
        said = {"first": first, "last": last}
        words = ", ".join(f"pipeline_parallel_{end}_stage_less_layers={count}" for end, count in said.items())
        mesh = f"ParallelismConfig(pipeline_parallel_degree={pp}, {words}, pipeline_parallel_schedule='{schedule}')"
        reading = read(_source(f"config.parallelism = {mesh}").replace("8B", blocks), 64)
        layers = list(reading.layout.layers)
        assert (sum(layers), len(layers)) == (reading.model.num_layers, pp * (1 + (schedule != "1F1B")))
        layers[0] += first
        layers[-1] += last
        assert max(layers) - min(layers) <= 1


def test_what_is_wrong_is_named() -> None:
    assert unnamed(refused(_source("pass"), None), "how many GPUs", "--gpus") == []
    sharded = _source(f"{MESH}.data_parallel_shard_degree = 4")
    assert unnamed(refused(sharded, 16), "16 GPUs", "data_parallel_shard_degree: 4") == []
    for line, *named in rows(f"""
        config.training.seq_len = read_length() | seq_len | read_length(..) | --also "--training.seq_len
        config.training = usual_training() | `training` | usual_training(..)
        config.training.seq_len = LENGTHS[0] | seq_len | LENGTHS[0]
        for n in (1, 2): config.training.local_batch_size = n | local_batch_size | only Python knows
        {MESH}.warp_degree = here() | warp_degree: here(..) | could change layout
        if here(): config.training.local_batch_size = 2 | local_batch_size | only Python knows
        {MESH}.tensor_parallel_degree = 3 | 8 GPUs | = 3
        config.training.global_batch_size = 12 | 12 sequences | 4 on each of dp8
        config.training.seq_len = 'long' | training.seq_len: long | no whole number
        config.activation_checkpoint = MemoryBudgetAC.Config() | MemoryBudgetAC | not priced
        config.optimizer = default_muon(lr=1.0) | default_muon | Adam and AdamW
        config.optimizer.name = 'Muon' | Muon | Adam and AdamW
        config.model_spec = model_registry('9B') | `9B` of llama3 | llama3 8B
        config.model_spec = mine() | model_registry(..) | mine
        config.model_spec = model_registry('8B', converters=[LoRAConverter.Config()]) | LoRAConverter
        return config if here() else None | no recipe
    """):
        assert unnamed(refused(_source(line)), *named) == [], line


PATHS = """
    training.local_batch_size training.seq_len training.global_batch_size training.steps training.dtype
    training.mixed_precision_param training.num_tokens_per_train_step optimizer compile.components
    activation_checkpoint activation_checkpoint.mode activation_checkpoint.selective_ac_option
    parallelism.data_parallel_shard_degree parallelism.pipeline_parallel_degree parallelism.context_parallel_degree
    parallelism.pipeline_parallel_schedule parallelism.pipeline_parallel_layers_per_stage
    parallelism.pipeline_parallel_first_stage_less_layers parallelism.module_fqns_per_model_part
    parallelism.fsdp_reshard_after_forward
"""
NONSENSE = "-1 0 10**30 1e400 'x' [] {} None True [[1]] 1.5 float('nan')"


@pytest.mark.parametrize("path", PATHS.split())
def test_nonsense_is_read_or_refused(path: str) -> None:
    """Never another error, whatever a setting is."""
    for value in NONSENSE.split():
        line = f"config.parallelism.pipeline_parallel_degree = 2; config.{path} = {value}"
        for source, also in ((_source(line), ""), (_source(line.partition(";")[0]), f'--{path} "{value}"')):
            with suppress(InputError):
                assert read(source, also=also).layout.num_gpus == 8


def test_texts_that_are_no_recipe() -> None:
    calls = r"\n".join(f"def a{n}(): return [{f'a{n - 1}(), ' * 9}]" for n in range(1, 12))
    job = r"[model]\nname='llama3'\nflavor='8B'\n"
    for text, name, says in rows(rf"""
        def plan(: | recipe.py | no Python
        x = 1 | recipe.py | no recipe
        def a(): return b()\ndef b(): return a() | recipe.py | calls itself
        x = {"(" * 5000} | recipe.py | no Python
        x = {"-" * 50_000}1 | recipe.py | deep
        def a0(): return 1\n{calls} | recipe.py | too much
        [model | job.toml | no TOML
        [training]\nseq_len = 1 | job.toml | lacks `[model]`
        {job}converters = 5 | job.toml | must list names
        {job}[training]\ncompile=true\n[compile]\nenable=false | job.toml | False`: contradicts `training.compile: True`
    """):
        assert says in refused(text, name=name), text[:80]
    assert '--also "--config NAME" takes one: `llama3_8b`' in refused(REGISTRY)
    assert "holds itself" in refused(_source("config.training = config"))


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    touch = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    read(
        f"{touch}\nX = {touch}\n" + _source(f"{touch}; config.dump_folder = {touch}"),
        also="--dump_folder __import__('os')",
    )
    assert not mark.exists()


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


BASE = {"train_batch_size": 32, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}


def shown(**more: Any) -> Reading:
    return read_deepspeed(BASE | more, load_model("llama3.1-8b"), ReadOptions(gpus=8, sequence=4096))


def test_two_batches_give_the_third() -> None:
    assert shown().layout.brief == "tp1 pp1 dp8 mbs4 zero2"
    assert shown(train_micro_batch_size_per_gpu=2).layout.mbs == 2
    assert "nothing is recomputed" in shown().assumptions[0]
    sharded = shown(zero_optimization={"stage": 3})
    assert (shown().stack.overlap_gradient_reduce, sharded.stack.overlap_gradient_reduce) == (False, True)


def test_switches_of_2021_put_states_and_weights_on_the_host() -> None:
    older = {"cpu_offload": True, "cpu_offload_param": True}
    assert "offload=states" in str(shown(zero_optimization={"stage": 2, **older}).layout)
    assert "offload=streamed" in str(shown(zero_optimization={"stage": 3, **older}).layout)


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
        assert unnamed(refusal(shown, **json.loads(more)), *named) == [], more


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
    reading = shown(bf16={"enabled": True, "bf16_optimizer_states": True})
    assert reading.training.state_dtype == "fp32"
    assert "no effect of `bf16.bf16_optimizer_states: True`" in " ".join(reading.assumptions)


@pytest.mark.parametrize("text", [b"", b"[[[", b"\xff\xfe\x00"])
def test_a_json_that_cannot_be_read_is_nobodys(text: bytes, tmp_path: Path) -> None:
    """It was taken for TorchRec's: a recommender was said to have no sequences."""
    (tmp_path / "ds.json").write_bytes(text)
    with pytest.raises(InputError, match=r"ds\.json"):
        reader_of(str(tmp_path / "ds.json"))
