"""Recipes of torchtitan, read without running them: exports come back, Llama 3's own are read, what is odd is named."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import rows, unnamed

from cost_models.errors import InputError
from planner.formats.settings import Reading, ReadOptions, also_settings
from planner.formats.torchtitan import read_torchtitan


def read(text: str, gpus: int | None = 8, *, also: str = "", name: str = "recipe.py") -> Reading:
    options = ReadOptions(gpus=gpus, also=also_settings(also))
    return read_torchtitan(textwrap.dedent(text), name, None, options)


def refused(text: str, gpus: int | None = 8, *, also: str = "", name: str = "recipe.py") -> str:
    with pytest.raises(InputError) as error:
        read(text, gpus, also=also, name=name)
    return str(error.value)


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
JOB = """
    [model]
    name = "llama3"
    flavor = "{flavor}"
    converters = "{converters}"
    [training]
    batch_size = {batch}
    seq_len = 8192
    steps = 1000
    compile = {compiled}
    [parallelism]
    data_parallel_shard_degree = -1
    tensor_parallel_degree = {tp}
    enable_async_tensor_parallel = {compiled}
    [activation_checkpoint]
    mode = "{mode}"
    selective_ac_option = "op"
"""
"""The same of releases before 0.3 (models/llama3/train_configs)."""
RECIPES = {
    "8b": (64, "tp1 pp1 dp64 mbs1 zero3 recompute=selective", ("8B", "", 1, 1, "false", "selective")),
    "70b": (256, "tp8 pp1 dp32 mbs8 zero3 sp recompute=full", ("70B", "", 8, 8, "false", "full")),
    "405b": (128, "tp8 pp1 dp16 mbs2 zero3 sp recompute=full", ("405B", "float8", 2, 8, "true", "full")),
}


@pytest.mark.parametrize("size", RECIPES)
def test_llama_3_as_torchtitan_trains_it(size: str) -> None:
    gpus, brief, (flavor, converters, batch, tp, compiled, mode) = RECIPES[size]
    reading = read(REGISTRY, gpus, also=f"--config llama3_{size}")
    job = JOB.format(flavor=flavor, converters=converters, batch=batch, tp=tp, compiled=compiled, mode=mode)
    earlier = read(job, gpus, name="job.toml")
    for one in (reading, earlier):
        assert one.layout.brief == brief
        assert one.model.name == f"llama3.1-{size}"
        assert one.training.global_batch == one.layout.dp * one.layout.mbs
        assert one.training.precision == ("fp8" if size == "405b" else "bf16")
        assert one.stack.compiled == (size == "405b")
        assert (one.stack.overlap_tensor_parallel > 0) == (size == "405b")
    steps = 3000 if size == "405b" else 1000
    assert reading.training.tokens == steps * reading.training.tokens_per_step


MESH = "config.parallelism"


def test_of_every_so_many_blocks_one_is_recomputed() -> None:
    job = JOB.format(flavor="8B", converters="", batch=1, tp=1, compiled="false", mode="selective")
    for option, policy in (("1", "full"), ("2", "full:16"), ("5", "full:7")):
        assert read(job.replace('"op"', f'"{option}"'), name="job.toml").layout.recompute == (policy,)


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


@given(
    blocks=st.sampled_from(("8B", "70B", "405B")),
    pp=st.sampled_from((2, 4, 8)),
    first=st.integers(0, 2),
    last=st.integers(0, 2),
    interleaved=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_stages_that_nobody_names_share_blocks_and_ends(
    blocks: str, pp: int, first: int, last: int, interleaved: bool
) -> None:
    """All blocks once, stages that differ by one where each end counts as so many blocks."""
    said = {"first": first, "last": last}
    words = ", ".join(f"pipeline_parallel_{end}_stage_less_layers={count}" for end, count in said.items())
    words += f", pipeline_parallel_schedule='{'Interleaved1F1B' if interleaved else '1F1B'}'"
    mesh = f"ParallelismConfig(pipeline_parallel_degree={pp}, {words})"
    reading = read(_source(f"config.parallelism = {mesh}").replace("8B", blocks), 64)
    layers = list(reading.layout.layers)
    assert (sum(layers), len(layers)) == (reading.model.num_layers, pp * (1 + interleaved))
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
            try:
                assert read(source, also=also).layout.num_gpus == 8
            except InputError as error:
                assert str(error)  # noqa: PT017


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
