"""Scripts of Megatron-LM and of what runs on it that are read as plans."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from calling import Answer, refusal
from tables import rows, unnamed

import meshwright as mw
from benchmarks.importers.commands import nemo_file
from benchmarks.importers.run import priced
from cost_models.errors import InputError
from planner.formats.launches import launch_of
from planner.formats.megatron import read_megatron
from planner.formats.nemo import overrides, read_bridge, read_nemo
from planner.formats.registry import reader_of
from planner.formats.settings import Reading, ReadOptions, table_of

SHAPE = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--vocab-size 50304"
)
COMMAND = f"torchrun --nproc-per-node 8 --nnodes=2 pretrain_gpt.py {SHAPE} --bf16 --global-batch-size 64"


def read(text: str, *, gpus: int | None = None, stack: str | None = None, also: str = "") -> Reading:
    return read_megatron(launch_of(text, also), gpus=gpus, stack=stack)


def refused(text: str, *, gpus: int | None = None) -> str:
    return refusal(read, text, gpus=gpus)


def test_what_is_not_said_is_as_megatron_has_it() -> None:
    reading = read(COMMAND)
    assert reading.layout.brief == "tp1 pp1 dp16 mbs1 zero0"
    assert (reading.stack.overlap_gradient_reduce, reading.stack.overlap_tensor_parallel) == (False, 0.0)
    model = reading.model
    assert (model.norm, model.positions, model.tied_embeddings) == ("layernorm", "learned", True)
    assert "microbatches of one sequence" in reading.assumptions
    words = "--swiglu --disable-bias-linear --normalization RMSNorm --use-distributed-optimizer"
    gated = read(f"{COMMAND} {words}")
    assert (gated.model.ffn_hidden_size, gated.model.mlp_bias, gated.layout.zero) == (10880, False, 1)


def test_a_fusion_that_is_off_counts_where_it_would_fuse() -> None:
    plain = COMMAND + " --disable-bias-linear --hidden-dropout 0 --attention-dropout 0"
    for more, fused in (
        ("--no-bias-gelu-fusion", True),
        ("--squared-relu --no-bias-gelu-fusion --no-bias-dropout-fusion", True),
        ("--swiglu --no-bias-gelu-fusion", True),
        ("--swiglu --no-bias-swiglu-fusion", False),
    ):
        assert read(f"{plain} {more}").stack.fused_elementwise == fused, more
    assert not read(COMMAND + " --no-bias-gelu-fusion").stack.fused_elementwise
    assert not read(COMMAND + " --squared-relu --no-bias-dropout-fusion").stack.fused_elementwise


def test_contradictions_are_both_named() -> None:
    for more, *named in rows("""
        --fp16 | --fp16 | --bf16
        --global-batch-size 128 | --global-batch-size 128 | --global-batch-size 64
        --overlap-grad-reduce --no-overlap-grad-reduce | --no-overlap-grad-reduce | --overlap-grad-reduce
        --recompute-activations --recompute-granularity full | granularity full | --recompute-activations
        --tensor-model-parallel-size 3 | 16 GPUs | tp3
        --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 5 | stage 5 | pp2
        --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*9|t*9L' | t*9 | 32
        --num-experts eight | --num-experts eight | no whole number
        --swiglu yes | --swiglu yes | no value
        --optimizer muon | muon | adam, sgd
        --exp-avg-dtype bf16 | --exp-avg-dtype bf16 | one type
        --exp-avg-sq-dtype bf16 | --exp-avg-sq-dtype bf16 | one type
    """):
        assert unnamed(refused(f"{COMMAND} {more}"), *named) == [], more


def test_what_only_a_shell_knows_is_refused_with_what_to_paste() -> None:
    many = f"A=(--lr 0.1)\nif $X; then A+=(--fp16); fi\n{COMMAND} --log-throughput ${{A[@]}}"
    texts = [
        COMMAND.replace("--num-layers 32", f"--num-layers {one}") for one in ("$L", "`cat l`", "$(cat l)")
    ]
    texts += [COMMAND.replace("pretrain_gpt.py", "pretrain_gpt.py $EXTRA"), f"{COMMAND} --bf16 $EXTRA", many]
    texts += [f"if [ -f x ]; then L=32; fi\n{COMMAND.replace('32', '$L', 1)}", f"{COMMAND} --lr 0.1 $EXTRA"]
    for text in texts:
        said = refused(text)
        assert unnamed(said, "only the shell knows", "hint: paste the command with values in place") == [], (
            text
        )


def test_literal_words_of_a_script_are_put_in() -> None:
    text = f"""
        N=16 # of "blocks
        N=32
        MODEL=({SHAPE.replace("--num-layers 32", "--num-layers ${N}")})
        MORE=(--bf16); MORE+=(--global-batch-size "${{BATCH:-64}}")
        if [ -z "$X" ]; then echo pretrain_gpt.py; fi
        torchrun --nproc-per-node 8 --nnodes 2 --node-rank $1 \\
            pretrain_gpt.py ${{MODEL[@]}} "${{MORE[@]}}" "$@" | tee log
    """
    reading = read(text)
    assert (reading.model, reading.layout) == (read(COMMAND).model, read(COMMAND).layout)
    assert "`BATCH` is not set; its default `64` is used" in reading.assumptions


def test_texts_that_are_no_launch() -> None:
    tokens = COMMAND.replace("--vocab-size 50304", "--tokenizer-type Llama2Tokenizer")
    grows = "A=$A$A\n" * 30
    assert "grows beyond" in refused(f"A={'x' * 1000}\n{grows}{COMMAND}")
    for text, says in rows(f"""
        echo hello | nothing here starts
        torchrun pretrain_gpt.py "--num-layers | is missing
        {COMMAND}\\n{COMMAND} --swiglu | 2 different commands
        torchrun pretrain_bert.py --num-layers 2 | `pretrain_bert.py` is not read here
        python pretrain_gpt.py {SHAPE} | --gpus says it
        {tokens} | --also
    """):
        assert says in refused(text)


def test_hostile_values_are_refused() -> None:
    for (more,) in rows(f"""
        --optimizer-cpu-offload --optimizer-offload-fraction nan
        --rotary-percent inf --position-embedding-type rope
        --ffn-hidden-size {"9" * 400}
        --num-experts 8 --moe-layer-freq {"[1]*9999+" * 1000}[1]
        --pipeline-model-parallel-layout {"(" * 500}t{")*9999" * 500}
        --num-query-groups -1 --group-query-attention
        --position-embedding-type 0
    """):
        assert refused(f"{COMMAND} {more}")
    assert refused(f"A={'A=(' * 5000}")


PRINTED = {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 4096, "bf16": True}
PRINTED |= {"max_position_embeddings": 4096, "vocab_size": 50304, "global_batch_size": 64, "world_size": 16}


def head(**more: object) -> str:
    """The head of a log: every argument of the table at its default, but for those that are said, and some others."""
    usual = {name: row.default for name, row in table_of("megatron").arguments.items()}
    usual |= {
        "encoder_seq_length": 4096,
        "data_parallel_size": 2,
        "rank": 0,
        "exp_avg_dtype": "torch.float32",
    }
    printed = usual | PRINTED | {"attention_backend": "AttnBackend.auto", "cp_comm_type": ["p2p"]} | more
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(printed.items())]
    return "\n".join(["it's no command", *lines, "-------------------- end of arguments ----"])


def test_the_head_of_a_log_and_a_list_of_processes_are_read_as_the_command() -> None:
    more = {"tensor_model_parallel_size": 4, "use_distributed_optimizer": True, "bias_gelu_fusion": False}
    words = "--tensor-model-parallel-size 4 --use-distributed-optimizer --no-bias-gelu-fusion"
    command = read(f"{COMMAND} {words}")
    printed = read(head(**more))
    assert printed == replace(command, assumptions=printed.assumptions)
    assert set(printed.assumptions) <= set(command.assumptions)
    assert read(head(**more).replace("\n", "\n[default0]:")) == printed
    assert "warp_offload_degree: not known here" in read(head(warp_offload_degree=4)).assumptions[0]
    assert "no effect of `--ep-chunk" not in " ".join(read(head(), also="--lr 1").assumptions)
    assert "16 GPUs, --gpus says 8" in refused(head(), gpus=8)
    assert "could change" not in refused(head(use_torch_fsdp2=True, optimizer="muon"))
    ranks = f"root 7 99.0 python -u pretrain_gpt.py {SHAPE} --bf16 --global-batch-size 64 {words}"
    listed = f"root 4 0.1 /bin/python /bin/{COMMAND} {words}\n{ranks}\n{ranks.replace(' 7 ', ' 8 ')}"
    processes = read(listed)
    assert processes == replace(command, assumptions=processes.assumptions)
    assert "one job of 3 commands with the same arguments, as `ps` lists" in processes.assumptions
    assert read(ranks, gpus=16).layout == command.layout


def test_whose_it_is(tmp_path: Path) -> None:
    sharding = tmp_path / "plan.json"
    sharding.write_text("{}")
    assert [reader_of(one) for one in ("run.sh", COMMAND, "slurm-1.out")] == ["megatron"] * 3
    assert (reader_of(str(sharding)), reader_of("launcher", "megatron")) == ("torchrec", "megatron")
    for source, said in (("launcher", None), ("run.sh", "jax")):
        with pytest.raises(InputError, match="megatron, torchtitan, nemo, deepspeed, accelerate, axolotl"):
            reader_of(source, said)


def test_what_the_command_says_is_not_said_beside_it(meshwright: Callable[..., Answer]) -> None:
    code, _, told = meshwright("import", COMMAND, "llama3-8b", "dgx-h100", "--precision", "fp8")
    assert code == 2
    assert "MODEL: the command says it" in told
    assert "--precision: the command says it" in told
    code, _, told = meshwright("import", COMMAND, "dgx-h100", "--gpus", "8")
    assert code == 2
    assert "starts on 16 GPUs, --gpus says 8" in told
    assert meshwright("import", "plan.json", "dgx-h100").code == 2


RECIPE = """
from megatron.bridge.recipes.gpt import vanilla_gpt_pretrain_config
def plan():
    config = vanilla_gpt_pretrain_config()
    config.model.num_layers = 32
    config.model.hidden_size = 4096
    config.model.num_attention_heads = 32
    config.model.seq_length = 4096
    config.model.vocab_size = 50304
    config.train.micro_batch_size = 1
    config.train.global_batch_size = 64
    {line}
    return config
"""


def test_overrides_and_what_is_left_out() -> None:
    options = ReadOptions(gpus=16, also={"train.global_batch_size": 128})
    reading = read_bridge(RECIPE.format(line="config.model.warp = 2"), options)
    assert (reading.layout.brief, reading.training.global_batch) == ("tp1 pp1 dp16 mbs1 zero0", 128)
    assert (reading.training.precision, reading.training.dropout) == ("bf16", 0.1)
    assert not reading.stack.overlap_gradient_reduce
    assert reading.assumptions[0].startswith("no effect of `model.warp: 2`: not known here")


def test_what_is_wrong_is_named() -> None:
    for line, *named in rows("""
        config.model.num_layers = count() | model.num_layers | count(..)
        config.model.num_layers = COUNT | model.num_layers | only Python knows
        config.model.num_layers = 'many' | model.num_layers: many
        config.model = Llama3ModelProvider8B() | Llama3ModelProvider8B | only Bridge
        config.mixed_precision = 'int4_mixed' | int4_mixed
        config.model.activation_func = mish | mish
        config.model.moe_layer_freq = [[1]] | moe_layer_freq
        config = llama3_8b_pretrain_config() | llama3_8b_pretrain_config | only Bridge
        return 3 | no recipe
        config.model.tensor_model_parallel_size = 3 | 16 GPUs | tp3
    """):
        said = refusal(read_bridge, RECIPE.format(line=line), ReadOptions(gpus=16))
        assert unnamed(said, *named) == [], line


def test_nonsense_is_read_or_refused() -> None:
    """Never another error, whatever a setting is."""
    for value in ["-1", "10**30", "1e400", "'x'", "[]", "{}", "[[1]]", "[1]", "float('nan')", "True"]:
        others = ("num_moe_experts", "virtual_pipeline_model_parallel_size", "activation_func")
        for name in (*table_of("megatron").arguments, *others):
            with suppress(InputError):
                read_bridge(RECIPE.format(line=f"config.model.{name} = {value}"), ReadOptions(gpus=16))


WORDS = "model.override_vocab_size=128256"


def nemo_plan(also: str = WORDS, *, gpus: int | None = None, **model: Any) -> Reading:
    file = nemo_file("llama3.1-70b")
    options = ReadOptions(gpus=gpus, also=overrides(also))
    return read_nemo(file | {"model": file["model"] | model}, options)


def refused_nemo(also: str = WORDS, *, gpus: int | None = None, **model: Any) -> str:
    return refusal(nemo_plan, also, gpus=gpus, **model)


@cache
def lines() -> list[dict[str, str]]:
    return priced()


def test_published_commands_come_out_as_published() -> None:
    """SC21's ten, MegaScale's baseline, DGX Cloud's files and torchtitan's recipes: read, then priced."""
    sources = {line["source"] for line in lines()}
    assert len(sources) == 4
    for source in sources:
        errors = [abs(float(line["error"])) for line in lines() if line["source"] == source]
        assert statistics.median(errors) < 0.05, source
        assert max(errors) < 0.08, source


def test_overrides_and_what_is_left_out_of_nemo() -> None:
    also = "+model.fp8=True trainer.num_nodes=16 model.virtual_pipeline_model_parallel_size=null"
    reading = nemo_plan(f"{WORDS} {also}")
    assert (reading.training.precision, reading.layout.vpp, reading.layout.num_gpus) == ("fp8", 1, 128)
    gpt = read_nemo(nemo_file("gpt3-175b"), ReadOptions())
    assert (gpt.model.positions, gpt.model.norm, gpt.model.tied_embeddings) == ("learned", "layernorm", True)
    assert gpt.model.vocab_multiple == 128  # 50,257 words are padded
    assert any("50,257 words" in one for one in gpt.assumptions)


def test_settings_that_name_others_have_their_values() -> None:
    length = {"encoder_seq_length": 2048, "max_position_embeddings": "${.encoder_seq_length}"}
    for data in "${model.encoder_seq_length}", 2048, "${training.model.encoder_seq_length}":
        reading = nemo_plan(**length, data={"seq_length": data})
        assert (reading.training.sequence_length, reading.model.max_positions) == (2048, 2048)
    said = refused_nemo(WORDS, **length, data={"seq_length": 4096})
    assert "`model.data.seq_length: 4096`: contradicts `model.encoder_seq_length: 2048`" in said


def test_settings_that_are_not_known_are_listed() -> None:
    noted, unknown = nemo_plan(
        warp=9, defer_embedding_wgrad_compute=True, blunt=False, gc_interval=5
    ).assumptions
    assert noted.startswith("no effect of `model.defer_embedding_wgrad_compute: True`: ")
    assert unknown.startswith("no effect of `model.warp: 9`, `model.blunt: False`: not known here")


def test_what_is_wrong_is_named_of_nemo() -> None:
    for model, also, *named in rows(f"""
        {{num_layers: eighty}} | {WORDS} | num_layers: eighty | no value
        {{num_layers: true}} | {WORDS} | num_layers: True
        {{num_layers: "${{layers}}"}} | {WORDS} | num_layers | filled in when the program starts
        {{sequence_parallel: 1}} | {WORDS} | sequence_parallel: 1
        {{hidden_size: {10**40}}} | {WORDS} | hidden_size
        {{activation: mish}} | {WORDS} | mish
        {{normalization: batch}} | {WORDS} | batch
        {{fsdp: true}} | {WORDS} | fsdp
        {{optim: {{name: muon}}}} | {WORDS} | muon | Adam
        {{}} | - | vocabulary | override_vocab_size
        {{}} | {WORDS} trainer.precision=int8 | int8
        {{}} | model.fp8 | no setting like
        {{}} | ' | --also
        {{}} | {WORDS} model.tensor_model_parallel_size=3 | 64 GPUs | tp3
    """):
        assert unnamed(refused_nemo(also, **yaml.safe_load(model)), *named) == [], model


NONSENSE = [-1, 10**30, 1e300, float("nan"), float("inf"), "x", [], {}, True, [[1]], ["a"]]


@pytest.mark.parametrize("value", NONSENSE)
def test_nonsense_is_read_or_refused_of_nemo(value: Any) -> None:
    """Never another error, whatever a setting is."""
    file = nemo_file("llama3.1-70b")
    others = ("rotary_base", "num_moe_experts", "kv_channels", "rampup_batch_size", "precision")
    for name in (*file["model"], *others):
        part = "trainer" if name == "precision" else "model"
        with suppress(InputError):
            read_nemo(file | {part: file[part] | {name: value}}, ReadOptions(also=overrides(WORDS)))


def test_whose_file_it_is(tmp_path: Path) -> None:
    file = tmp_path / "gpt.yaml"
    file.write_text("model: {num_layers: 3}")
    for trainer, said in ((None, "no trainer that is known here"), ("nemo", "no file of NeMo")):
        with pytest.raises(InputError, match=said):
            mw.import_plan(file, None, "dgx-h100", trainer=trainer)
