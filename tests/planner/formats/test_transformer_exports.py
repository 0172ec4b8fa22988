"""Plans that are written for trainers."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, compress
from pathlib import Path
from typing import Any, get_args

import pytest
from effort import number
from small import MODEL, small_question
from tables import rows
from trainer_logs import WRITERS

import meshwright as mw
from benchmarks.exporters import compare, peers
from benchmarks.exporters.draw import DENSE, MIXTURES, draw, question
from benchmarks.exporters.targets import TARGETS, Read
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.base import Spec
from cost_models.defaults import complete_question
from cost_models.errors import InfeasibleError, InputError
from cost_models.files.catalog import load_model, load_stack
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.measured.logs import Work, read_logs
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from meshwright.verbs.export import export
from planner.formats.exporter import ABOUT_STACKS, Job, contradictions, field_paths, settings_of
from planner.formats.registry import exporter_named
from planner.formats.trainers import TRAINERS, refusals, require_own_stack, trainer_named
from planner.plan import Plan, make_plan
from planner.rules.legality import check
from planner.space.restrictions import parse_restrictions
from planner.space.space import enumerate_layouts


def plan_of(target: str, layout: str) -> Plan:
    """A plan of llama3.1-8b on as many GPUs as the layout has, for the target's own stack."""
    read = parse_layout(layout)
    asked = question("llama3.1-8b", TARGETS[target].stack, gpus=read.num_gpus)
    return make_plan(asked, estimate(asked, read))


USUAL = {
    "megatron": "tp2 pp2 dp2 mbs1 zero1 sp layers=16*2",
    "torchtitan": "tp2 pp2 dp2 mbs1 zero3 sp layers=16*2",
    "nemo": "tp2 pp2 dp2 mbs1 zero1 sp layers=16*2",
    "deepspeed": "tp2 pp2 dp2 mbs1 zero1 layers=16*2",
    "accelerate": "tp2 dp4 mbs1 zero3 layers=32",
    "axolotl": "tp2 cp2 dp2 mbs1 zero3 layers=32",
}


def test_a_field_of_a_stack_is_a_fact_or_says_nothing_of_a_run() -> None:
    """A new field is a fact, which exports compare, until it is named here."""
    assert set(StackSpec.model_fields) >= ABOUT_STACKS


@pytest.mark.parametrize("name", TARGETS)
def test_every_field_of_a_plan_is_exported_in_order(name: str) -> None:
    exported = export(plan_of(name, USUAL[name]), name)
    assert [one.field for one in exported.fields] == list(field_paths())
    assert not [one for one in exported.fields if one.verdict == "lacking"]


SHAPES = list(map(load_model, (*DENSE, *MIXTURES, "gpt-oss-120b", "gemma3-27b", "gpt-j-6b", "bloom-176b")))
"""Models whose fields are tried in one another."""
MODEL_ELSEWHERE = ("deepspeed", "accelerate", "axolotl")
"""Trainers whose files hold no model: it is the program's, or a checkpoint's."""


def changes(spec: Spec, others: Sequence[Spec]) -> Iterator[tuple[str, Spec]]:
    """The specification with one field as it is in another, or as another of the choices that the field has."""
    for name, field in type(spec).model_fields.items():
        choices = [getattr(one, name) for one in others]
        choices += chain.from_iterable(get_args(one) or [one] for one in get_args(field.annotation))
        if isinstance(getattr(spec, name), bool):
            choices.append(not getattr(spec, name))
        tried: list[Any] = [getattr(spec, name)]
        for value in choices:
            if value not in tried and not isinstance(value, type) and len(tried) <= number(2, 20):
                tried.append(value)
                with suppress(ValueError, TypeError):
                    yield name, type(spec).model_validate(spec.model_dump() | {name: value})


@pytest.mark.parametrize("name", TARGETS)
def test_a_change_that_changes_the_price_changes_the_file_or_is_named(name: str) -> None:
    """So no field is forgotten, also none that a specification is given later."""
    one, tried = TARGETS[name], 0

    def answers(job: Job) -> dict[str, tuple[Any, ...]]:
        fields = one.target.field_exports(job)
        return {each.field: (each.settings, each.verdict, each.note) for each in fields}

    drawn = list(draw(one.stack, number(2, 20), 3, name, one.models))
    for asked, layout in drawn:
        job = Job(asked, layout)
        price, before = priced(job), answers(job)
        parts: dict[str, tuple[Spec, Sequence[Spec]]] = {
            "layout": (layout, [each for _, each in drawn]),
            "training": (asked.training, ()),
            "model": (asked.model, SHAPES),
        }
        for part, (spec, others) in parts.items() if name not in MODEL_ELSEWHERE else [*parts.items()][:2]:
            for field, changed in changes(spec, others):
                other = job_with(job, **{part: changed})
                if priced(other) in (None, price) or check(other.question, other.layout, name, hosts=False):
                    continue
                tried += 1
                after = answers(other)
                is_named = after[f"{part}.{field}"][1] != "expressed"
                assert is_named or after != before, f"{part}.{field}"
    assert tried


def job_with(job: Job, layout: Any = None, training: Any = None, model: Any = None) -> Job:
    """The job with another layout, training job or model."""
    model, training = model or job.model, training or job.training
    asked = complete_question(model, job.question.cluster, training, stack=job.stack)
    return Job(asked, layout or job.layout)


def priced(job: Job) -> tuple[float, float] | None:
    """Seconds of a step and bytes at its peak; None where the change makes no run."""
    try:
        answer = estimate(job.question, job.layout)
    except (ValueError, ArithmeticError, LookupError):
        return None
    return answer.step_seconds, answer.peak_bytes


Drawn = list[tuple[Question, Layout]]


def read_all(name: str, drawn: Drawn) -> list[tuple[Question, Layout, dict[str, Any], Any]]:
    """Those of the drawn that the target has all words for, with its settings and what its parser made of them."""
    one: Read = TARGETS[name]
    translated = [one.target.field_exports(Job(*each)) for each in drawn]
    said = [not any(field.verdict == "lacking" for field in fields) for fields in translated]
    drawn = list(compress(drawn, said))
    assert 2 * len(drawn) > len(said)
    settings = [settings_of(fields) for fields in compress(translated, said)]
    cases = [one.case(Job(*each), said) for each, said in zip(drawn, settings, strict=True)]
    answers = peers.read_back(one.peer, cases)
    return [(*each, said, answer) for each, said, answer in zip(drawn, settings, answers, strict=True)]


@pytest.mark.parametrize("name", [name for name, one in TARGETS.items() if one.peer])
def test_the_trainers_own_parser_reads_the_plan(name: str) -> None:
    one = TARGETS[name]
    if why := peers.lacking(one.peer):
        pytest.skip(why)
    drawn = list(draw(one.stack, number(16, 200), 1, name if name in TRAINERS else None, one.models))
    for asked, layout, settings, answer in read_all(name, drawn):
        assert "values" in answer, (str(layout), answer)
        planned = compare.planned(asked, layout)
        planned = {key: value for key, value in planned.items() if key not in one.unread}
        assert one.read(answer["values"], asked) == planned, str(layout)
        for key, value in settings.items() if one.same_names else ():
            said = answer["values"].get(key, "nothing")
            assert said == (list(value) if isinstance(value, tuple) else value), (key, str(layout))


def test_what_a_layout_says_of_overlap_is_said_instead_of_what_the_stack_always_does() -> None:
    words = "tp2 pp2 vpp2 dp2 mbs1 zero1 sp layers=8*4"
    said = ("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p_comm", "tp_comm_overlap")
    expected = {
        "": (True, True, None, True),
        "none": (None, None, False, None),
        "tp,pp": (None, None, None, True),
    }
    for overlap, values in expected.items():
        own = f"{words} overlap={overlap}" if overlap else words
        settings = settings_of(export(plan_of("megatron", own), "megatron").fields)
        assert tuple(settings.get(name) for name in said) == values


@pytest.mark.parametrize(("own", "said"), [(1, 128), (64, 64), (256, 256)])
def test_a_vocabulary_is_padded_as_it_was_priced(own: int, said: int) -> None:
    """A plan of old says 1 and leaves it to the stack; what a model says itself goes before that."""
    plan = plan_of("megatron", "tp1 dp8 mbs1")
    assert plan.question.stack.pads_vocabulary
    padded = plan.model_copy(update={"model": plan.model.model_copy(update={"vocab_multiple": own})})
    assert f"--make-vocab-size-divisible-by {said}\n" in export(padded, "megatron").text


def test_uneven_stages_are_a_layout_of_the_pipeline() -> None:
    text = export(plan_of("megatron", "pp2 vpp2 dp1 mbs1 layers=7,9,9,7"), "megatron").text
    assert f"--pipeline-model-parallel-layout '{'E' + 't' * 7}|{'t' * 9}|{'t' * 9}|{'t' * 7 + 'L'}'" in text


def test_what_a_trainer_has_no_words_for_is_left_out_only_if_asked() -> None:
    plan = plan_of("megatron", USUAL["megatron"])
    odd = plan.model_copy(update={"model": plan.model.model_copy(update={"logit_scale": 0.5})})
    with pytest.raises(InfeasibleError, match="cannot say one thing") as error:
        export(odd, "megatron")
    (problem,) = error.value.problems
    assert str(problem) == "model.logit_scale: `0.5`: it does not scale logits"
    assert "not written: model.logit_scale" in " ".join(export(odd, "megatron", partly=True).remarks)


def test_a_model_as_deepseek_v3_is_normed_and_routed_as_it() -> None:
    asked = question("deepseek-v3", "megatron-core", gpus=64)
    layout = parse_layout("tp8 pp8 dp1 ep8 etp1 mbs1 zero1 sp layers=8*3,7,8*3,6")
    exported = export(make_plan(asked, estimate(asked, layout)), "megatron")
    words = {"--qk-layernorm", "--moe-router-enable-expert-bias", "--moe-router-dtype"}
    assert words <= set(shlex.split(exported.text, comments=True))
    without = replace(asked, model=asked.model.model_copy(update={"routing_bias": False}))
    text = export(make_plan(without, estimate(without, layout)), "megatron").text
    assert "--moe-router-enable-expert-bias" not in text


def test_a_plan_of_another_trainer_is_one_of_other_prices() -> None:
    plan = plan_of("megatron", USUAL["megatron"])
    other = plan.model_copy(update={"stack": load_stack("meshwright")})
    with pytest.raises(InfeasibleError, match="cannot say") as error:
        export(other, "megatron")
    assert "prices are of another trainer" in str(error.value)
    assert error.value.hint == "plan again with --for megatron, or --partly writes the rest"


def test_names_cannot_leave_their_place(tmp_path: Path) -> None:
    """A plan's name that holds shell stays in a comment."""
    plan = plan_of("megatron", USUAL["megatron"])
    text = exporter_named("megatron").write(plan, "a\nrm -rf $HOME #.yaml", False).text
    assert next(line for line in text.splitlines() if "rm -rf" in line).startswith("# ")


def test_shardings_and_transformers_have_exporters_of_their_own() -> None:
    with pytest.raises(InputError, match="`torchrec` takes shardings of recommenders, not a `plan`"):
        export(plan_of("megatron", USUAL["megatron"]), "torchrec")


@pytest.mark.parametrize("name", ["torchrun", "slurm"])
def test_the_own_executor_is_started_with_the_plan(name: str, tmp_path: Path) -> None:
    plan = plan_of("megatron", "tp8 pp2 dp1 mbs1 zero1 sp layers=16*2")
    exported = exporter_named(name).write(plan, "my plan.yaml", False)
    (tmp_path / "run.sh").write_text(exported.text, encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(tmp_path / "run.sh")], check=False).returncode == 0
    assert "meshwright run 'my plan.yaml'" in exported.text
    assert ("--nnodes" if name == "torchrun" else "#SBATCH --nodes=2") in exported.text
    assert "prices are of `megatron-core`; as the executor runs it" in exported.remarks[0]
    full = plan_of("megatron", "tp2 dp8 mbs4 zero1 sp layers=32")
    with pytest.raises(InfeasibleError, match="does not fit as the executor runs it"):
        exporter_named(name).write(full, "plan.yaml", False)
    narrow = plan.model_copy(update={"training": plan.training.model_copy(update={"precision": "fp16"})})
    with pytest.raises(InfeasibleError, match="the executor trains in fp32, bf16 or fp8, not in fp16"):
        exporter_named(name).write(narrow, "plan.yaml", False)


EXPERTS = MODEL.model_copy(
    update={"num_experts": 8, "experts_per_token": 2, "moe_ffn_hidden_size": 512, "ffn_hidden_size": 2048}
)


def asked(trainer: str, *, experts: bool = False, tied: bool = False) -> Question:
    """Eight GPUs and the trainer's own stack."""
    question = small_question(8, stack="meshwright")
    model = EXPERTS if experts else MODEL.model_copy(update={"tied_embeddings": tied})
    return replace(question, model=model, stack=load_stack(trainer_named(trainer).stack))


MIXTURE, TIED = {"experts": True}, {"tied": True}
NOT_WRITTEN = [
    (trainer, text, what, {"experts": MIXTURE, "tied": TIED}.get(model, {}))
    for trainer, text, model, what in rows("""
        megatron | pp2 dp4 schedule=gpipe | - | Megatron runs 1f1b
        megatron | dp8 zero2 | - | Megatron's distributed optimizer shards optimizer states (zero1)
        megatron | pp2 vpp2 dp4 mbs2 | - | Megatron interleaves microbatches in groups of pp2; there are 1
        megatron | tp2 dp4 ep2 | experts | Megatron trains experts with tp2 only with sequence
        megatron | pp2 cp2 dp2 order=tp-cp-pp-dp | - | Megatron cannot seat `cp2` in `order=tp-cp-pp-dp`
        megatron | pp2 dp4 ep2 order=tp-cp-pp-dp | experts | Megatron wants dp4 copies of an expert, not 2
        megatron | dp8 ep4 zero1 shard2 | experts | `shard2` makes 4 instances of the distributed optimizer
        megatron | pp2 dp4 recompute=full,none | - | Megatron recomputes the same on every stage, not full
        megatron | pp2 dp4 recompute=full:1/selective | - | Megatron has one policy for the blocks of a
        torchtitan | dp8 zero1 | - | torchtitan shards weights, gradients and optimizer states together
        torchtitan | cp2 dp4 | - | torchtitan shards weights over the ranks of `cp2`
        torchtitan | cp4 dp2 zero3 shard2 | - | `shard2` is no multiple of cp4
        torchtitan | pp2 dp4 zero3 | tied | torchtitan cannot tie the embeddings of `small` across
        torchtitan | tp2 dp4 ep2 zero3 | experts | torchtitan keeps experts whole
        torchtitan | tp2 dp4 etp1 zero3 | experts | without `ep` torchtitan splits experts over tp2
        torchtitan | dp8 ep4 zero3 shard2 | experts | `ep4` takes ranks from one shard group
        torchtitan | pp2 dp4 zero3 recompute=full:1 | - | torchtitan has one policy for the blocks of a
        torchtitan | pp2 dp4 zero3 recompute=full,none | - | torchtitan recomputes the same
        deepspeed | pp2 vpp2 dp4 | - | DeepSpeed's pipelines run 1f1b with one chunk a rank
        deepspeed | pp2 dp4 zero2 | - | DeepSpeed's pipelines go with zero0 and zero1, not with `zero2`
        deepspeed | tp2 dp4 sp | - | DeepSpeed's tensor parallelism keeps sequences whole
        deepspeed | dp8 zero3 shard2 | - | DeepSpeed shards over all 8 ranks with the same weights, not over 2
        deepspeed | cp2 dp4 zero3 | experts | DeepSpeed's experts go under zero3 only without context
        deepspeed | dp8 offload=states | - | DeepSpeed keeps on hosts all states (from zero1
        deepspeed | dp8 zero2 offload=streamed | - | a share of them (zero3) or all weights too
        deepspeed | dp8 zero3 offload=streamed:1 | - | DeepSpeed keeps on hosts
        deepspeed | dp8 zero2 offload=states:1 | - | a share of them (zero3)
        deepspeed | pp2 dp4 recompute=full,none | - | DeepSpeed recomputes the same on every stage
        FSDP2 | pp2 dp4 | - | has no pipelines (`pp2`)
        FSDP2 | dp8 zero1 | - | shards gradients with optimizer states, not as `zero1`
        FSDP2 | tp2 dp4 | - | shards weights over the replicas of `tp2 cp1`
        FSDP2 | cp4 dp2 zero3 shard2 | - | not over `shard2` of cp4
        FSDP2 | tp2 dp4 ep2 zero3 | experts | holds experts as the rest
        FSDP2 | tp2 dp4 zero3 sp | - | keeps the sequences of tensor ranks whole
        FSDP2 | dp8 zero3 recompute=selective | - | has no `recompute=selective`
        FSDP2 | dp8 zero3 offload=streamed:1 | - | offloads the weights of all blocks with their states
    """)
]
NOT_WRITTEN += [("nemo", *case) for trainer, *case in NOT_WRITTEN if trainer == "megatron"]
FSDP2 = [case for trainer, *case in NOT_WRITTEN if trainer == "FSDP2"]
NOT_WRITTEN = [case for case in NOT_WRITTEN if case[0] != "FSDP2"]
NOT_WRITTEN += [(trainer, *case) for trainer in ("accelerate", "axolotl") for case in FSDP2]
NOT_WRITTEN += [("deepspeed", *FSDP2[-2]), ("torchtitan", *FSDP2[-1])]


@pytest.mark.parametrize(("trainer", "text", "what", "model"), NOT_WRITTEN)
def test_a_rule_refuses_in_its_words(trainer: str, text: str, what: str, model: dict[str, bool]) -> None:
    (words,) = refusals(trainer, asked(trainer, **model), parse_layout(text))
    assert (what.removeprefix("Megatron") if trainer == "nemo" else what) in words.what
    if trainer in TARGETS:
        with pytest.raises(InfeasibleError) as error:
            TARGETS[trainer].target.require_allowed(Job(asked(trainer, **model), parse_layout(text)))
        assert [problem.what for problem in error.value.problems] == [words.what]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_rule_is_shown_to_refuse_something(trainer: str) -> None:
    cases = [(text, model) for name, text, _, model in NOT_WRITTEN if name == trainer]
    for rule in trainer_named(trainer).rules:
        broken = [
            text
            for text, model in cases
            if rule.broken(asked(trainer, **model), LayoutColumns.of([parse_layout(text)]))[0]
        ]
        assert broken, rule.name


def test_megatron_recomputes_some_blocks_of_every_stage_in_full() -> None:
    """As many of each, or all of a stage that has fewer."""
    for stages in ("recompute=full:1", "layers=1,3 recompute=full,full:2", "layers=1,3 recompute=none,none"):
        assert not refusals("megatron", asked("megatron"), parse_layout(f"pp2 dp4 {stages}"))
    for stages in ("recompute=full:1,full:2", "recompute=full,full:1", "recompute=none,full:1"):
        assert refusals("megatron", asked("megatron"), parse_layout(f"pp2 dp4 layers=2,2 {stages}"))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_its_other_stacks_have_layouts_that_it_starts(trainer: str) -> None:
    """Each goes with the trainer, and together with its rules leaves something to search."""
    for name in trainer_named(trainer).other_stacks:
        stack = load_stack(name)
        require_own_stack(trainer, stack)
        question = replace(asked(trainer), stack=stack)
        assert len(enumerate_layouts(question, parse_restrictions(["cp=1"], trainer=trainer))), name


@pytest.mark.parametrize("trainer", ["deepspeed", "accelerate", "axolotl"])
def test_what_is_planned_for_a_trainer_with_offload_is_exported(trainer: str) -> None:
    """On one GPU, which shards nothing: a trainer's rules leave out what its file cannot say of offloading."""
    asked = mw.TrainingSpec(global_batch=1, sequence_length=2048)
    fixed = ["tp=1", "mbs=1", "recompute=full"]
    planned = mw.plan("qwen3-14b", "gh200-quad", asked, gpus=1, trainer=trainer, allow=["offload"], fix=fixed)
    assert any(planned.plan.layout.offload)  # type: ignore[attr-defined]
    assert export(planned.plan, trainer).text


SAYS = {
    "megatron": [
        "using world size: 8, data-parallel size: 2, context-parallel size: 1, tensor-model-parallel size: 2",
        "  normalization ................................... LayerNorm",
        "  num_layers ...................................... 12",
        "  add_bias_linear ................................. True",
        "  expert_model_parallel_size ...................... 1",
    ],
    "nemo": ["All distributed processes registered. Starting with 8 processes", "  micro_batch_size: 4"],
    "torchtitan": [
        "[titan] Trainer is initialized with local batch size 4, global batch size 64, gradient accumulation steps 8,"
        " sequence length 1024, total steps 10 (warmup 2)",
        '    "tensor_parallel_degree": 2,',
    ],
    "torchtune": ["batch_size: 4", "  max_seq_len: 1024"],
    "nanotron": ["parallelism=ParallelismArgs(dp=2,", "  pp=2,", "  tp=2,", "  micro_batch_size=4,"],
    "deepspeed": [
        "[2026-01-02 03:04:05,000] [INFO] [config.py:1005:print]   train_batch_size ............. 64",
        "[2026-01-02 03:04:05,000] [INFO] [config.py:1005:print]   zero_optimization_stage ...... 1",
        "[2026-01-02 03:04:05,000] [INFO] [config.py:1005:print]   train_micro_batch_size_per_gpu  4",
    ],
    "hugging_face": [
        "  Instantaneous batch size per device = 4",
        "  Total train batch size (w. parallel, distributed & accumulation) = 64",
    ],
}


@pytest.fixture(scope="module")
def plan() -> Plan:
    layout = parse_layout("tp2 pp2 dp2 mbs4 zero1 layers=6*2")
    training = TrainingSpec(global_batch=64, sequence_length=1024)
    model, cluster = resolve_model("gpt2-small").spec, resolve_cluster("dgx-a100-80gb", 8)
    question = complete_question(model, cluster, training)
    return make_plan(question, estimate(question, layout))


@pytest.mark.parametrize("trainer", SAYS)
def test_the_same_sizes_pass_and_others_are_named(tmp_path: Path, plan: Plan, trainer: str) -> None:
    work = Work(tokens=64 * 1024, sequences=64, gpus=8)
    path = tmp_path / "train.log"
    said = SAYS[trainer]
    path.write_text("\n".join([*said, *WRITERS[trainer]([1.0] * 9)]) + "\n")
    log = read_logs([path], work)
    assert log.settings
    assert [*contradictions(log, plan)] == []
    path.write_text("\n".join([*(_other(one) for one in said), *WRITERS[trainer]([1.0] * 9)]) + "\n")
    problems = [*contradictions(read_logs([path], work), plan)]
    lines = {int(one.where.partition(":")[2].split()[0]) for one in problems}
    assert problems
    assert lines <= set(range(1, len(said) + 1))
    assert all(": the log has " in str(one) for one in problems)


def _other(line: str) -> str:
    """The line with another size."""
    others = {"1024": "4096", "64": "48", "12": "24", " 4": " 16", "=4": "=16", "=2": "=4"}
    for size, another in others.items():
        if size in line:
            return line.replace(size, another)
    return line.replace(" 1", " 3").replace(" 8", " 32").replace(": 2,", ": 8,")
