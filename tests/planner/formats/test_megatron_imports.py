"""Commands that start Megatron-LM, read without running them: what was exported comes back, what is odd is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from calling import Answer
from effort import number

import meshwright as mw
from benchmarks.exporters.draw import DENSE, MIXTURES, draw
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from meshwright.verbs.export import export
from planner.formats.launches import launch_of
from planner.formats.megatron import read_megatron
from planner.formats.registry import reader_of
from planner.formats.settings import Reading
from planner.plan import load_any_plan, make_plan

SHAPE = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--vocab-size 50304"
)
COMMAND = f"torchrun --nproc-per-node 8 --nnodes=2 pretrain_gpt.py {SHAPE} --bf16 --global-batch-size 64"


def read(text: str, *, gpus: int | None = None, stack: str | None = None, also: str = "") -> Reading:
    return read_megatron(launch_of(text, also), gpus=gpus, stack=stack)


def refused(text: str, *, gpus: int | None = None) -> str:
    with pytest.raises(InputError) as error:
        read(text, gpus=gpus)
    return str(error.value)


def test_what_was_exported_comes_back() -> None:
    """Random layouts that nobody picked: the same layout at the same price, which is exported as the same script."""
    for asked, layout in draw("megatron-core", number(21, 200), 5, "megatron", DENSE + MIXTURES):
        before = estimate(asked, layout)
        text = export(make_plan(asked, before), "megatron").text
        reading = read(text)
        same = {"context": layout.context or asked.stack.context_parallel} if layout.cp > 1 else {}
        assert str(reading.layout.model_copy(update=same)) == str(layout.model_copy(update=same))
        back = complete_question(reading.model, asked.cluster, reading.training, stack=reading.stack)
        assert back.training == asked.training
        after = estimate(back, reading.layout)
        assert after.peak_bytes == pytest.approx(before.peak_bytes), str(layout)
        if layout.sp or layout.tp == 1:  # else Megatron-LM cannot hide what the stack would
            assert after.step_seconds == pytest.approx(before.step_seconds), str(layout)
        assert export(make_plan(back, after), "megatron").text.replace("imported", asked.model.name) == text


SC21 = {  # examples/academic_paper_scripts/sc21 of Megatron-LM (run_table_1.sh, CONFIG.sh), and the paper's TFLOP/s
    "1.7B": (24, 2304, 24, 1, 1, 16, 512, 4, "", 137),
    "18B": (40, 6144, 48, 8, 1, 8, 1024, 32, "", 135),
    "76B": (60, 10240, 80, 8, 4, 2, 1792, 128, "5", 140),
    "530B": (105, 20480, 128, 8, 35, 1, 2520, 315, "1", 163),
}


@pytest.mark.parametrize("size", SC21)
def test_a_published_script_is_read(size: str) -> None:
    """Figures of SC21's runs, put together as its scripts do: strings in strings, a shell in srun."""
    layers, hidden, heads, tp, pp, mbs, batch, nodes, each, teraflops = SC21[size]
    text = f"""
        #!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=8
        TP={tp}; PP={pp}
        EXTRA="--recompute-method uniform {f"--num-layers-per-virtual-pipeline-stage {each}" if each else ""} "
        PARAMS=" ${{EXTRA}} --tensor-model-parallel-size ${{TP}} --pipeline-model-parallel-size ${{PP}} \\
            --micro-batch-size {mbs} --global-batch-size {batch} --num-layers {layers} --hidden-size {hidden} \\
            --num-attention-heads {heads} --DDP-impl local --data-path ${{DATA}} --vocab-file `pwd`/vocab.json \\
            --seq-length 2048 --max-position-embeddings 2048 --train-iters 500 --lr 0.0001 --fp16"
        CMD="python -u ${{CODE}}/pretrain_gpt.py ${{PARAMS}}"
        srun -l --output=$(date +%s).log sh -c "${{CMD}}" > log 2>&1
    """
    reading = read(text, stack="megatron-2021", also="--vocab-size 51200")
    vpp = layers // pp // int(each) if each else 1
    words = (
        f"tp{tp} pp{pp} {f'vpp{vpp} ' if each else ''}dp{nodes * 8 // tp // pp} mbs{mbs} zero0 recompute=full"
    )
    assert reading.layout.brief == words
    assert (reading.training.precision, reading.training.dropout) == ("fp16", 0.1)
    assert (reading.model.num_layers, reading.model.hidden_size, reading.model.norm) == (
        layers,
        hidden,
        "layernorm",
    )
    assert any("dropout 0.1" in one for one in reading.assumptions)
    cluster = resolve_cluster("dgx-a100-80gb", nodes * 8)
    question = complete_question(reading.model, cluster, reading.training, stack=reading.stack)
    ends = 1 + 2048 / (6 * hidden) + 51200 / (16 * layers * hidden)  # Narayanan et al. 2021, equation 3
    measured = 96 * batch * 2048 * layers * hidden**2 * ends / (nodes * 8 * teraflops * 1e12)
    assert estimate(question, reading.layout).step_seconds == pytest.approx(measured, rel=0.08)


def test_what_is_not_said_is_as_megatron_has_it() -> None:
    reading = read(COMMAND)
    assert reading.layout.brief == "tp1 pp1 dp16 mbs1 zero0"
    assert (reading.stack.overlap_gradient_reduce, reading.stack.overlap_tensor_parallel) == (False, 0.0)
    model = reading.model
    assert (model.norm, model.positions, model.tied_embeddings) == ("layernorm", "learned", True)
    assert "microbatches of one sequence" in reading.assumptions
    gated = read(
        COMMAND + " --swiglu --disable-bias-linear --normalization RMSNorm --use-distributed-optimizer"
    )
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


def test_unknown_arguments_are_kept_and_listed() -> None:
    reading = read(COMMAND + " --frobnicate 3 --lr 1e-4 --data-path $DATA --shiny")
    assert reading.assumptions[0].startswith("no effect of `--frobnicate 3`, `--shiny`: not known here")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("--fp16", ("--fp16", "--bf16")),
        ("--global-batch-size 128", ("--global-batch-size 128", "--global-batch-size 64")),
        (
            "--overlap-grad-reduce --no-overlap-grad-reduce",
            ("--no-overlap-grad-reduce", "--overlap-grad-reduce"),
        ),
        (
            "--recompute-activations --recompute-granularity full",
            ("granularity full", "--recompute-activations"),
        ),
        ("--tensor-model-parallel-size 3", ("16 GPUs", "tp3")),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 5", ("stage 5", "pp2")),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*9|t*9L'", ("t*9", "32")),
        ("--num-experts eight", ("--num-experts eight", "no whole number")),
        ("--swiglu yes", ("--swiglu yes", "no value")),
        ("--optimizer muon", ("muon", "adam, sgd")),
        ("--exp-avg-dtype bf16", ("--exp-avg-dtype bf16", "one type")),
        ("--exp-avg-sq-dtype bf16", ("--exp-avg-sq-dtype bf16", "one type")),
    ],
)
def test_contradictions_are_both_named(more: str, named: tuple[str, ...]) -> None:
    said = refused(f"{COMMAND} {more}")
    assert [one for one in named if one not in said] == []


@pytest.mark.parametrize(
    "text",
    [
        COMMAND.replace("--num-layers 32", "--num-layers $LAYERS"),
        COMMAND.replace("--num-layers 32", "--num-layers `cat layers`"),
        COMMAND.replace("--num-layers 32", "--num-layers $(cat layers)"),
        f"if [ -f x ]; then LAYERS=32; fi\n{COMMAND.replace('32', '$LAYERS', 1)}",
        COMMAND.replace("pretrain_gpt.py", "pretrain_gpt.py $EXTRA"),
        COMMAND + " --bf16 $EXTRA",
        COMMAND + " --lr 0.1 $EXTRA",
        f"A=(--lr 0.1)\nif $X; then A+=(--fp16); fi\n{COMMAND} --log-throughput ${{A[@]}}",
    ],
)
def test_what_only_a_shell_knows_is_refused_with_what_to_paste(text: str) -> None:
    said = refused(text)
    assert "only the shell knows" in said
    assert "hint: paste the command with values in place" in said


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
    assert "`BATCH` is not set, so that it is `64`" in reading.assumptions


def test_words_of_gpt2_are_known_by_their_files() -> None:
    reading = read(COMMAND.replace("--vocab-size 50304", "--vocab-file v.json --merge-file $MERGES"))
    assert reading.model.vocab_size == 50257
    assert "50,257 words, those of GPT-2's tokenizer" in reading.assumptions


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    read(f"touch {mark}; X=$(touch {mark}) {COMMAND} --save `touch {mark}`")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("echo hello", "nothing here starts"),
        ('torchrun pretrain_gpt.py "--num-layers', "is missing"),
        (f"{COMMAND}\n{COMMAND} --swiglu", "2 different commands"),
        ("torchrun pretrain_bert.py --num-layers 2", "`pretrain_bert.py` is not read here"),
        (f"python pretrain_gpt.py {SHAPE}", "--gpus says it"),
        (COMMAND.replace("--vocab-size 50304", "--tokenizer-type Llama2Tokenizer"), "--also"),
        ("A=" + "x" * 1000 + "\n" + "A=$A$A\n" * 30 + COMMAND, "grows beyond"),
    ],
)
def test_texts_that_are_no_launch(text: str, says: str) -> None:
    assert says in refused(text)


@pytest.mark.parametrize(
    "more",
    [
        "--optimizer-cpu-offload --optimizer-offload-fraction nan",
        "--rotary-percent inf --position-embedding-type rope",
        f"--ffn-hidden-size {'9' * 400}",
        f"--num-experts 8 --moe-layer-freq {'[1]*9999+' * 1000}[1]",
        f"--pipeline-model-parallel-layout {'(' * 500}t{')*9999' * 500}",
        f"A={'A=(' * 5000}",
        "--num-query-groups -1 --group-query-attention",
        "--position-embedding-type 0",
    ],
)
def test_hostile_values_are_refused(more: str) -> None:
    with pytest.raises(InputError):
        read(f"{COMMAND} {more}" if more.startswith("-") else f"{more}\n")


def test_whose_it_is(tmp_path: Path) -> None:
    sharding = tmp_path / "plan.json"
    sharding.write_text("{}")
    assert [reader_of(one) for one in ("run.sh", str(sharding), COMMAND)] == [
        "megatron",
        "torchrec",
        "megatron",
    ]
    assert reader_of("launcher", "megatron") == "megatron"
    for source, said in (("launcher", None), ("run.sh", "jax")):
        with pytest.raises(
            InputError, match="megatron, torchtitan, nemo, deepspeed, accelerate, axolotl, torchrec"
        ):
            reader_of(source, said)


def test_a_written_plan_is_explained_and_compared(tmp_path: Path, meshwright: Callable[..., Answer]) -> None:
    script, mine = tmp_path / "run.sh", str(tmp_path / "mine.yaml")
    script.write_text(f"{COMMAND} --tensor-model-parallel-size 4 --use-distributed-optimizer --oddity 1\n")
    told = meshwright("import", str(script), "dgx-h100", "-o", mine, "--json")
    assert told.code == 0
    assert "no effect of `--oddity 1`: not known here" in " ".join(told.err.split())
    record = json.loads(told.out)
    assert any("dropout 0.1" in one for one in record["assumptions"])
    answer = mw.import_plan(script, None, "dgx-h100")
    assert answer.record() == record
    assert str(load_any_plan(mine).layout) == str(answer.estimate.layout)  # type: ignore[attr-defined]
    assert meshwright("compare", mine, mine).code == 0
    assert meshwright("explain", mine, "--why-not", "tp8 dp2 mbs1 zero1 sp").code == 0


def test_what_the_command_says_is_not_said_beside_it(meshwright: Callable[..., Answer]) -> None:
    code, _, told = meshwright("import", COMMAND, "llama3-8b", "dgx-h100", "--precision", "fp8")
    assert code == 2
    assert "MODEL: the command says it" in told
    assert "--precision: the command says it" in told
    code, _, told = meshwright("import", COMMAND, "dgx-h100", "--gpus", "8")
    assert code == 2
    assert "starts on 16 GPUs, --gpus says 8" in told
    assert meshwright("import", "plan.json", "dgx-h100").code == 2
