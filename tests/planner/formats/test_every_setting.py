"""What becomes of every setting of a trainer's file: it is read, cannot matter for a reason, or is named; what could
change layout or memory and is not priced stops the import unless --ignore names it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from calling import Answer
from effort import number
from tables import rows

from cost_models.errors import InputError
from cost_models.files.catalog import load_model
from planner.formats import registry
from planner.formats.deepspeed import read_deepspeed
from planner.formats.exporter import field_paths, nested
from planner.formats.fsdp2 import read_accelerate, read_axolotl
from planner.formats.launches import launch_of, world_size
from planner.formats.megatron import read_megatron
from planner.formats.registry import reader_of
from planner.formats.settings import Reading, ReadOptions, UnusedSetting, table_of, unpriced
from planner.formats.torchtitan import read_torchtitan

FOLDER = Path(registry.__file__).parent

MEGATRON = (
    "torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --bf16 "
    "--num-attention-heads 32 --seq-length 4096 --vocab-size 50304 --global-batch-size 64 --num-experts 8"
)
TITAN = 'model.name = "llama3"\nmodel.flavor = "8B"\ntraining.seq_len = 4096\n{0} = {1}\n'
NEMO = """
trainer: {num_nodes: 1, devices: 8, precision: bf16}
model: {num_layers: 32, hidden_size: 4096, num_attention_heads: 32, encoder_seq_length: 4096, micro_batch_size: 1,
  global_batch_size: 64, tokenizer: {type: GPT2BPETokenizer}, ffn_hidden_size: 16384, NEW}
"""
AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\nbf16: true\n{0}: {1}\n"
ACCELERATE = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {{fsdp_version: 2, {0}: {1}}}\n"
DEEPSPEED = (
    '{{"train_batch_size": 8, "bf16": {{"enabled": true}}, "zero_optimization": {{"stage": 2}}, "{0}": {1}}}'
)
FILES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "megatron": ("run.sh", MEGATRON + " --{0} {1}", ()),
    "axolotl": ("tune.yaml", AXOLOTL, ("--gpus", "8")),
    "accelerate": ("acc.yaml", ACCELERATE, ("--sequence", "4096")),
    "deepspeed": ("ds.json", DEEPSPEED, ("--sequence", "4096", "--gpus", "8")),
    "torchtitan": ("job.toml", TITAN, ("--gpus", "8")),
    "nemo": ("gpt.yaml", NEMO.replace("{", "{{").replace("}", "}}").replace("NEW", "{0}: {1}"), ()),
}
"""Trainer → name of its file, the text around a setting, and what is said beside it."""


@pytest.mark.parametrize("trainer", FILES)
def test_what_could_matter_stops_and_all_else_is_named(
    trainer: str, tmp_path: Path, meshwright: Callable[..., Answer]
) -> None:
    name, text, beside = FILES[trainer]
    file = tmp_path / name

    def asked(key: str, value: int, *more: str) -> Answer:
        file.write_text(text.format(key, value))
        model = ("llama3.1-8b",) if trainer in ("accelerate", "deepspeed") else ()
        return meshwright("import", str(file), *model, "dgx-h100", *beside, *more)

    stopped = asked("warp_offload_degree", 4)
    assert stopped.code == 2
    assert "warp_offload_degree" in stopped.err
    key = stopped.err.rpartition("--ignore ")[2].strip()
    ignored = asked("warp_offload_degree", 4, "--ignore", key)
    assert ignored.code != 2
    assert f"assumed: no effect of `{key}`, which --ignore leaves out" in " ".join(ignored.err.split())
    plain = asked("warp_offload_degree", 4, "--ignore", "absent")
    assert plain.code == 2
    assert "`absent`: is not there" in plain.err


def test_another_trainers_files_are_told_by_their_keys(tmp_path: Path) -> None:
    """Every alternative of keys, in YAML, JSON and TOML; the `estimate` in the hint says what the file says."""
    for row in csv.DictReader((FOLDER / "foreign.csv").read_text().splitlines()):
        for keys in filter(None, row["keys"].split("|")):
            axes = {row[name].split()[0]: 4 for name in ("tp", "mbs") if row[name]}
            tables = [key for key in keys.split() if any(path.startswith(f"{key}.") for path in axes)]
            paths = dict.fromkeys({*keys.split()} - {*tables}, 4) | axes
            file = tmp_path / "job.yaml"
            file.write_text(json.dumps(nested(paths)))
            with pytest.raises(InputError, match="seems to be of") as error:
                reader_of(str(file), None, {"model": "gpt3-175b", "cluster": "dgx-h100", "gpus": "16"})
            said = str(error.value)
            assert f"of {row['trainer']}," in said
            assert "meshwright estimate gpt3-175b dgx-h100 --gpus 16 " in said
            assert all(f"{axis}4" in said for axis in ("tp", "mbs") if row[axis])


def test_another_trainers_commands_are_told_by_their_words() -> None:
    for command, trainer in rows("""
        python3 -m verl.trainer.main_ppo trainer.nnodes=1 | verl
        swift sft --model Qwen/Qwen3-8B --train_type lora | ms-swift
        tune run full_finetune_single_device --config x.yaml | torchtune
        llamafactory-cli train x.yaml | LLaMA-Factory
        deepy.py train.py x.yml | GPT-NeoX
        torchrun --nproc_per_node 8 run_train.py --config-file x.yaml | nanotron
    """):
        with pytest.raises(InputError, match=f"seems to be of {trainer}"):
            launch_of(command)


def test_what_a_batch_script_fixes_is_known() -> None:
    program = (
        "srun torchrun --nproc-per-node $SLURM_GPUS_ON_NODE --nnodes $SLURM_JOB_NUM_NODES pretrain_gpt.py"
    )
    for nodes, (each,) in product(
        ("--nodes=16", "--nodes 16", "-N 16", "-N16"),
        rows("""
        --gpus-per-node=4
        --gpus-per-node 4
        --gpus-per-node=a100:4
        --gres=gpu:4
        --gres gpu:a100:4,x:1
        --gpus=64
        -G 64
        -G64
        --ntasks-per-node=4 --gpus-per-task=1
        --gpus-per-node=4  # all
    """),
    ):
        launch = launch_of(f"#SBATCH {nodes}\n#SBATCH {each}\n{program} --num-layers 2")
        assert world_size(launch, None) == 64, (nodes, each)


def test_what_a_batch_script_leaves_open_is_not_guessed() -> None:
    text = "#SBATCH --nodes=2\nN=($(scontrol show hostnames))\ntorchrun --nproc-per-node {} --nnodes {} pretrain_gpt.py"
    # as many nodes as the script asks for
    assert world_size(launch_of(text.format(8, "${{#N[@]}}")), None) == 16
    with pytest.raises(InputError, match="how many GPUs"):
        world_size(launch_of(text.format("$EACH", "$MANY")), None)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_shards_over_one_replica_shards_nothing(
    stage: int, tmp_path: Path, meshwright: Callable[..., Answer]
) -> None:
    """Trainers run it so; no file has the word zero0 that a layout has for it."""
    file = tmp_path / "ds.json"
    file.write_text(DEEPSPEED.replace('"stage": 2', f'"stage": {stage}').format("steps_per_print", 4))
    told = meshwright("import", str(file), "gpt2-xl", "dgx-a100-80gb", "--gpus", "1", "--sequence", "1024")
    assert told.code != 2
    assert "zero0" in told.out
    assert f"ZeRO-{stage} shards over a single replica" in told.err
    alone = MEGATRON.format() + " --tensor-model-parallel-size 8 --use-distributed-optimizer"
    assert "tp8 pp1 dp1 mbs1 zero0" in meshwright("import", alone, "dgx-h100").out


def test_a_file_that_a_file_names_is_read_beside_it(
    tmp_path: Path, meshwright: Callable[..., Answer]
) -> None:
    """The model is the file's `base_model`; --ignore reaches what the other file holds."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}')
    file = tmp_path / "tune.yaml"
    file.write_text(AXOLOTL.format("deepspeed", "ds.json"))
    stopped = meshwright("import", str(file), "dgx-h100", "--gpus", "8")
    key = stopped.err.rpartition("--ignore ")[2].strip()
    assert (stopped.code, key) == (2, "zero_optimization.zero_hpz_partition_size")
    priced = meshwright("import", str(file), "dgx-h100", "--gpus", "8", "--ignore", key)
    assert "tp1 pp1 dp8 mbs1 zero3" in priced.out
    file.write_text(AXOLOTL.format("deepspeed", "absent.json").replace("Llama-3.1-8B", "Nobodys-8B"))
    for words, named in ((), "is not there"), (("--ignore", "deepspeed"), "Nobodys-8B"):
        told = meshwright("import", str(file), "dgx-h100", "--gpus", "8", *words)
        assert (told.code, named in told.err, "hint" in told.err) == (2, True, True)


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan", "deepspeed", "accelerate", "axolotl"])
def test_every_argument_of_a_table_has_one_fate(trainer: str) -> None:
    """It is read, of a field of plans if any, or has a reason why no price is made of it; never both."""
    table, fields = table_of(trainer), {"", *field_paths()}
    for one in table.arguments.values():
        assert one.field.removeprefix("not ") in fields, one.name
        assert one.field or not one.written, one.name
        assert one.kind in {"switch", "off", "whole", "share", "name", "list", "pattern"}, one.name
    spellings = [*table.arguments, *table.spelled("flag"), *table.spelled("earlier")]
    assert len(spellings) == len(set(spellings))
    assert not {*spellings} & {*table.fates["name"]}
    for column, fates in table.fates.items():
        assert [name for name, fate in fates.items() if not fate.reason] == [], column
    with (FOLDER / "arguments" / f"{trainer}.csv").open(newline="", encoding="utf-8") as file:
        columns = ("name", "flag", "nemo", "bridge")
        listed = [tuple(map(row.get, columns)) for row in csv.DictReader(file)]
    assert len(listed) == len(set(listed))


READ: dict[str, Callable[..., Reading]] = {"deepspeed": read_deepspeed, "accelerate": read_accelerate}
READ["axolotl"] = read_axolotl
WITHIN: dict[str, list[dict[str, Any]]] = yaml.safe_load("""
    deepspeed:
    - &zero {train_micro_batch_size_per_gpu: 1, bf16: {enabled: true}, zero_optimization: {stage: 0}}
    - {<<: *zero, zero_optimization: {stage: 1}}
    - {<<: *zero, zero_optimization: {stage: 2}}
    - {<<: *zero, zero_optimization: {stage: 3}}
    - {<<: *zero, zero_optimization: {stage: 3, offload_optimizer: {device: nvme}}, expert_parallel: {autoep_size: 2},
       bf16: {enabled: true, bf16_master_weights_and_grads: true}}
    accelerate: [{}, {distributed_type: FSDP}, {distributed_type: FSDP, fsdp_config: {fsdp_version: 1}}]
    axolotl:
    - &tuned {base_model: x, micro_batch_size: 1, bf16: true}
    - {<<: *tuned, fsdp_version: 2, fsdp_config: {offload_params: false}}
    - {<<: *tuned, fsdp: [full_shard]}
    - {<<: *tuned, deepspeed: {zero_optimization: {stage: 2}}}
""")
"""Trainer → files in each of which other settings act."""


@pytest.mark.parametrize("trainer", WITHIN)
def test_what_other_settings_leave_without_use_is_named(trainer: str) -> None:
    """An argument that a price is made of is never called unknown, and acts in some file."""
    read, documents = READ[trainer], WITHIN[trainer]
    model, idle = load_model("llama3.1-8b"), set[str]()
    for name, row in table_of(trainer).arguments.items():
        usual = {"switch": True, "off": False, "share": 0.5, "name": row.default, "list": [row.default]}
        value = next((one for one in row.synonyms if one != row.default), usual.get(row.kind, 2))
        heard = []
        for document in documents:
            try:
                beside = ReadOptions(gpus=8, sequence=4096, also={name: value})
                heard.append(" ".join(read(document, model, beside).assumptions))
            except InputError as error:
                heard.append(str(error))
        assert not [one for one in heard if f"`{name}: " in one and "not known here" in one]
        if all(f"no effect of `{name}: {value}`" in one for one in heard):
            idle.add(name)
    assert idle == set()


def _heard(trainer: str, key: str, value: str, ignore: tuple[str, ...] = ()) -> tuple[bool, str]:
    """Whether the reader stops, and what it says or assumes."""
    text = FILES[trainer][1].format(key, value)
    try:
        if trainer == "megatron":
            return False, " ".join(read_megatron(launch_of(text), ignore=ignore).assumptions)
        options = ReadOptions(gpus=8, ignore=ignore)
        return False, " ".join(read_torchtitan(text, "job.toml", None, options).assumptions)
    except InputError as error:
        return True, str(error)


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan"])
def test_what_no_price_is_made_of_is_ignored_named_or_stops(trainer: str) -> None:
    """Set to something: what cannot matter is passed over, what matters a little is named, all else stops unless it is
    left out; switched off or at its default, nothing stops or is named."""
    wrong: list[object] = []
    fates = list(table_of(trainer).fates["name"].items())
    for name, fate in fates[:: number(5, 1)]:
        stops, said = _heard(trainer, name, "7")
        shown = f"`--{name} 7`" if trainer == "megatron" else f"`{name}: 7`"
        plain = trainer == "megatron" or fate.default in ("", "true", "1", "1.0")
        off = _heard(trainer, name, (fate.default if plain else f'"{fate.default}"') or "0")
        as_told = (stops, shown in said) == (fate.kind == "unpriced", fate.kind != "ignored")
        if not as_told or off[0] or fate.reason in off[1]:
            wrong.append((name, fate, said, off))
        if stops and _heard(trainer, name, "7", (name,))[0]:
            wrong.append((name, "stops though it is left out"))
    assert wrong == []


@pytest.mark.parametrize("before", ["", "run.", "exp_manager."])
def test_logs_evaluation_and_places_stop_nothing_whatever_words_they_have(before: str) -> None:
    """They are named all the same; the words alone stop."""
    for word in ("optimizer", "cache", "batch", "activation_memory", "master", "expert-state"):
        settings = {
            key: UnusedSetting(f"{before}{key}", 7, f"{before}{key}: 7", None)
            for key in f"""
                log_{word}_size eval-{word} wandb_{word} {word}_dir {word}-path {word}_port
                {word}_size catalog_{word} {word}_support
            """.split()
        }
        stops = list(settings.values())[-3:]
        for setting in settings.values():
            if setting not in stops:
                assert setting.words in unpriced([setting])[0]
                continue
            with pytest.raises(InputError, match="could change layout or memory"):
                unpriced([setting])
