"""The command line as its users meet it: help, answers, errors, exit codes."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from executor.report import Environment, PhaseReport, RankReport, RunReport, make_report, save_report
from meshwright.cli import main
from meshwright.measured import time_parts
from planner.plan import load_plan

VERBS = ("plan", "estimate", "compare", "explain", "plot", "run", "calibrate", "validate", "catalog")
ASKED = ("gpt2-small", "dgx-a100-80gb", "--gpus", "8", "--global-batch", "64", "--sequence", "1024")
BIG = ("gpt3-175b", "dgx-a100-80gb", "--gpus", "1024", "--global-batch", "1536", "--sequence", "2048")
QUICK = ("--time-limit", "20")


class Answer:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def meshwright(capsys: pytest.CaptureFixture[str]):
    def call(*words: str) -> Answer:
        try:
            main(words)
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.yaml"
    with pytest.raises(SystemExit, match="0"):
        main(["plan", *ASKED, *QUICK, "--quiet", "-o", str(path)])
    return path


def test_help_lists_every_verb_with_a_sentence(meshwright) -> None:
    answer = meshwright("--help")
    commands = answer.out.split("Commands:")[1].splitlines()
    assert tuple(line.split()[0] for line in commands if line.strip()) == VERBS
    assert all(line.endswith(".") for line in commands if line.strip())


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        (
            "plan",
            "--gpus --global-batch --sequence --precision --training --stack --profile --fix --forbid --max-memory"
            " --top --time-limit --replay --out",
        ),
        (
            "estimate",
            "--layout --gpus --global-batch --sequence --precision --training --stack --profile --out",
        ),
        ("compare", ""),
        ("explain", "--why-not"),
        ("plot", "--gpus --out"),
        ("run", "--steps --backend --out"),
        ("calibrate", "--processes --quick --from-runs --stack --gpu --cross-validate --out"),
        ("validate", "--runs --stack --profile --anchors --out"),
        ("catalog", ""),
    ],
)
def test_flags_of_a_verb(meshwright, verb: str, flags: str) -> None:
    answer = meshwright(verb, "--help")
    assert answer.code == 0
    found = set(re.findall(r"(?<![\w-])--[a-z-]+", answer.out.split("Options:")[1]))
    assert found >= {*flags.split(), "--json", "--csv", "--quiet", "--help"}
    assert max(map(len, answer.out.splitlines())) <= 80


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from meshwright.cli import main\n"
        "try: main(['plan', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pandas', 'matplotlib', 'pulp', 'networkx', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_plan_in_words(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    answer = meshwright("plan", *BIG, *QUICK, "-o", str(path))
    assert answer.code == 0
    assert answer.out.startswith("gpt3-175b on 1024 x a100-sxm-80gb (128 nodes)")
    assert "Proved optimal: " in answer.out
    assert "gap 0 %" in answer.out
    assert max(len(line.rstrip()) for line in answer.out.splitlines()) <= 80
    assert answer.err == f"Wrote {path}. Next: meshwright explain {path}, meshwright run {path}\n"
    assert path.exists()


def test_plan_as_json_is_one_document(meshwright) -> None:
    answer = meshwright("plan", *ASKED, *QUICK, "--json", "--top", "3")
    document = json.loads(answer.out)
    assert document["schema"] == 1
    assert [plan["step_seconds"] for plan in document["plans"]] == sorted(
        plan["step_seconds"] for plan in document["plans"]
    )
    best = document["plans"][0]
    assert sum(best["parts"].values()) == pytest.approx(best["step_seconds"])
    assert max(sum(rank.values()) for rank in best["memory"]) == pytest.approx(best["peak_bytes"])
    assert {"layout", "mfu", "hfu", "peak_bytes", "fits", "trust"} <= set(best)
    certificate = document["certificate"]
    assert certificate["gap"] == 0
    counts = ("infeasible", "pruned", "solved", "undecided")
    assert certificate["layouts"] == sum(certificate[name] for name in counts)


def test_plan_as_csv(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"
    assert meshwright("plan", *ASKED, *QUICK, "--top", "2", "--csv", str(path)).code == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 2
    assert float(rows[0]["step_seconds"]) <= float(rows[1]["step_seconds"])


def test_a_plan_replays_to_the_same_bytes(meshwright, plan_file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.yaml"
    assert meshwright("plan", "--replay", str(plan_file), *QUICK, "-o", str(again)).code == 0
    assert again.read_bytes() == plan_file.read_bytes()


def test_a_replay_keeps_the_restrictions_and_the_number_of_plans(meshwright, tmp_path: Path) -> None:
    first, again = tmp_path / "plan.yaml", tmp_path / "again.yaml"
    limits = ("--fix", "tp=2", "--forbid", "zero1", "--max-memory", "40GiB", "--top", "2")
    assert meshwright("plan", *ASKED, *QUICK, *limits, "-o", str(first)).code == 0
    replayed = meshwright("plan", "--replay", str(first), "-o", str(again), "--json")
    assert len(json.loads(replayed.out)["plans"]) == 2
    assert again.read_bytes() == first.read_bytes()
    answer = meshwright("explain", str(first), "--why-not", "dp8 mbs8")
    assert "the plan's restrictions kept out" in answer.out


def test_fixed_axes_are_kept(meshwright) -> None:
    answer = meshwright("plan", *ASKED, *QUICK, "--fix", "tp=2", "--forbid", "zero1", "--json")
    for plan in json.loads(answer.out)["plans"]:
        assert "tp2 " in plan["layout"]
        assert "zero1" not in plan["layout"]


def test_estimate(meshwright) -> None:
    answer = meshwright("estimate", *ASKED, "--layout", "tp2 dp4 mbs2 zero1")
    assert answer.code == 0
    assert "layout tp2 pp1 dp4 mbs2 zero1 layers=12" in answer.out
    document = json.loads(meshwright("estimate", *ASKED, "--layout", "tp2 dp4 mbs2", "--json").out)
    assert document["estimate"]["layout"].startswith("tp2 pp1 dp4")


def test_estimate_of_what_does_not_fit_says_so_and_exits_with_one(meshwright) -> None:
    answer = meshwright("estimate", *BIG, "--layout", "tp8 dp128 mbs1 zero1")
    assert answer.code == 1
    assert "does not fit" in " ".join(answer.out.split())


def test_interrupting_before_anything_is_known(meshwright, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwright.verbs.planning.search", interrupted)
    answer = meshwright("plan", *ASKED)
    assert (answer.code, answer.out, answer.err) == (130, "", "")


def test_compare_takes_plans_and_layouts(meshwright, plan_file: Path) -> None:
    answer = meshwright("compare", str(plan_file), "tp4 dp2 mbs8 sp", "tp2 dp4 mbs8")
    assert answer.code == 0
    assert re.search(r"^step +.* m?s +", answer.out, re.MULTILINE)
    assert max(len(line.rstrip()) for line in answer.out.splitlines()) <= 80


def test_explain(meshwright, plan_file: Path) -> None:
    answer = meshwright("explain", str(plan_file))
    assert answer.code == 0
    for beginning in ("layout ", "step ", "memory ", "Binds: ", "If only:"):
        assert re.search(f"^{beginning}", answer.out, re.MULTILINE), beginning
    assert max(len(line.rstrip()) for line in answer.out.splitlines()) <= 80
    document = json.loads(meshwright("explain", str(plan_file), "--json").out)
    assert set(document) == {"schema", "question", "plan", "binds", "ties", "runner_up", "if_only"}


def test_explain_why_not(meshwright, plan_file: Path) -> None:
    illegal = meshwright("explain", str(plan_file), "--why-not", "tp16 dp1").out
    assert illegal.startswith("`tp16 dp1` cannot run:")
    slower = json.loads(meshwright("explain", str(plan_file), "--why-not", "tp4 dp2 mbs1", "--json").out)
    assert slower["reason"] == "slower"
    assert sum(slower["difference"].values()) > 0


@pytest.mark.parametrize("kind", ["time", "memory", "timeline", "frontier", "scaling"])
def test_plot(meshwright, plan_file: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"{kind}.svg"
    more = ("--gpus", "4,8") if kind == "scaling" else ()
    answer = meshwright("plot", kind, str(plan_file), "-o", str(path), *more)
    assert answer.code == 0, answer.err
    assert path.read_text().startswith("<?xml")
    assert answer.out.endswith(f"Wrote {path}\n")


def test_plot_accuracy_from_csv(meshwright, tmp_path: Path) -> None:
    rows = tmp_path / "runs.csv"
    rows.write_text("label,quantity,predicted,measured\na,step_seconds,1.0,1.1\nb,step_seconds,2.0,1.9\n")
    path = tmp_path / "accuracy.png"
    answer = meshwright("plot", "accuracy", str(rows), "-o", str(path), "--json")
    document = json.loads(answer.out)
    assert document["title"] == "Step time: median error 7.2 %; 2 of 2 runs within 10 %"
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["models", "gpus", "clusters", "stacks", "profiles"])
def test_catalog(meshwright, kind: str) -> None:
    answer = meshwright("catalog", kind)
    assert answer.code == 0
    assert max(len(line.rstrip()) for line in answer.out.splitlines()) <= 80
    entries = json.loads(meshwright("catalog", kind, "--json").out)[kind]
    first = next(iter(entries[0].values()))
    assert json.loads(meshwright("catalog", kind, first, "--json").out)["entry"]["name"]


def test_catalog_schema(meshwright) -> None:
    assert json.loads(meshwright("catalog", "schema", "cluster").out)["title"] == "ClusterSpec"


ERRORS = {
    "unknown model": (
        ("plan", "gpt3-175c", *BIG[1:]),
        "error: unknown model `gpt3-175c`; did you mean `gpt3-175b`?\n\nhint: known names: meshwright catalog models\n",
    ),
    "nothing asked": (
        ("plan",),
        "error: nothing to plan for\n  MODEL: missing\n  CLUSTER: missing\n\nhint: meshwright plan gpt3-175b"
        " dgx-a100-80gb --gpus 1024 --global-batch 1536 --sequence 2048\n",
    ),
    "no GPUs": (
        ("plan", "gpt3-175b", "dgx-a100-80gb", "--gpus", "0", "--global-batch", "8", "--sequence", "8"),
        "error: a cluster of 0 GPUs cannot train anything\n\nhint: --gpus must be above zero\n",
    ),
    "memory unit": (
        ("plan", *ASKED, "--max-memory", "70Gb"),
        "error: --max-memory: `70Gb` is not a size; write it like `80 GiB` or `80 GB`\n",
    ),
    "missing plan": (
        ("explain", "nowhere.yaml"),
        "error: cannot read `nowhere.yaml`: no such file or directory\n",
    ),
    "unwritable csv": (
        ("catalog", "gpus", "--csv", "nowhere/x.csv", "--json"),
        "error: `nowhere/x.csv`: no such file or directory\n",
    ),
    "everything at once": (
        (
            *(
                "plan",
                "gpt3-175c",
                "dgx-a100-80g",
                "--global-batch",
                "-1",
                "--sequence",
                "0",
                "--precision",
                "bf17",
            ),
            *(
                "--fix",
                "tp=3x",
                "--fix",
                "zero=9",
                "--forbid",
                "sp=2",
                "--max-memory",
                "3",
                "-o",
                ".",
                "--csv",
                "no/x",
            ),
        ),
        "error: 11 problems in what was asked\n"
        "  unknown model `gpt3-175c`; did you mean `gpt3-175b`?\n"
        "  unknown cluster `dgx-a100-80g`; did you mean `dgx-a100-80gb`?\n"
        "  --global-batch: must be above zero, not `-1`\n"
        "  --sequence: must be above zero, not `0`\n"
        "  --precision: `bf17` is not one of `bf16`, `fp16`, `fp32`, `fp8`; did you mean `bf16`?\n"
        "  --fix tp=3x: `3x` is not a whole number\n"
        "  --fix zero=9: ZeRO has stages 0 to 3\n"
        "  --forbid sp=2: `2` is not 0 or 1\n"
        "  --max-memory: `3` is not a size; write it like `80 GiB` or `80 GB`\n"
        "  -o .: is a folder\n"
        "  --csv no/x: the folder `no` does not exist\n",
    ),
    "one file for two": (
        ("plan", *ASKED, "-o", "x.yaml", "--csv", "./x.yaml"),
        "error: the answer cannot be written\n  -o and --csv: both name `x.yaml`\n",
    ),
    "lone plan": (
        ("compare", "plan.yaml"),
        "error: compare takes two to 6 plans, not 1\n\nhint: after the first, a layout will do:"
        ' meshwright compare plan.yaml "tp8 pp4 dp2"\n',
    ),
    "picture": (
        ("plot", "memory", "plan.yaml", "-o", "x.gif"),
        "error: `x.gif` has no suffix of a picture\n\nhint: `.png`, `.svg` and `.pdf` can be drawn\n",
    ),
    "counts": (
        ("plot", "memory", "plan.yaml", "--gpus", "8"),
        "error: --gpus says where scaling curves are drawn, and means nothing to `memory`\n",
    ),
    "replay and model": (
        ("plan", "gpt2-small", "--replay", "plan.yaml", "--fix", "tp=2"),
        "error: --replay takes its question from the plan\n\nhint: leave out MODEL and --fix\n",
    ),
    "schema of what": (
        ("catalog", "schema"),
        "error: which schema?\n\nhint: meshwright catalog schema transformer|cluster|training|stack|profile\n",
    ),
}


BROKEN = {"broken.yaml": "kind: plan\nschema_version: 2\n...\n"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", *ASKED[:3], "9" * 23), "9 GPUs are more than there are"),
        (("plan", *ASKED[:5], "963761198400"), "  --global-batch: must be at most "),
        (("explain", "PLAN", "--why-not", ""), "error: `` is not a layout\n  it says nothing\n"),
        (
            ("plan", *ASKED, "--stack", "foo", "--profile", "bar"),
            "\n  unknown stack `foo`\n  unknown profile `bar`\n",
        ),
        (("compare", "PLAN", "broken.yaml", "tp3x"), "  `broken.yaml` has schema_version 2;"),
        (("compare", "PLAN", "broken.yaml", "tp3x"), "  `tp3x`: not part of a layout"),
        (
            ("plot", "scaling", "PLAN", "--gpus", "0,x"),
            "  --gpus: `0` is not a number of GPUs\n  --gpus: `x` is not",
        ),
        (
            ("plot", "scaling", "PLAN", "--gpus", "8,12"),
            "  12 GPUs are no whole number of nodes; a node has 8\n",
        ),
        (("plot", "memory", "PLAN", "-o", "no/x.png"), "  -o no/x.png: the folder `no` does not exist\n"),
        (("calibrate", "-o", "no/x.yaml"), "  -o no/x.yaml: the folder `no` does not exist\n"),
        (
            ("run", "PLAN", "--backend", "mpi"),
            "error: unknown backend `mpi`\n\nhint: nccl for GPUs, gloo for CPUs\n",
        ),
    ],
)
def test_more_errors(meshwright, plan_file: Path, tmp_path: Path, monkeypatch, words, said: str) -> None:
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    answer = meshwright(*(str(plan_file) if word == "PLAN" else word for word in words))
    assert said in answer.err
    assert (answer.code, answer.out) == (2, "")


def test_an_error_is_a_json_document_too(meshwright) -> None:
    answer = meshwright("plan", "gpt3-175c", *BIG[1:], "--json")
    assert json.loads(answer.out)["error"] == {
        "headline": "unknown model `gpt3-175c`; did you mean `gpt3-175b`?",
        "problems": [],
        "hint": "known names: meshwright catalog models",
    }
    assert answer.err.startswith("error: unknown model")


def test_restrictions_that_leave_nothing_are_named(meshwright) -> None:
    answer = meshwright("plan", *ASKED, "--fix", "tp=3", "--forbid", "zero3")
    assert answer.err == (
        "error: no layout of gpt2-small on 8 GPUs is legal with global batch 64 under --fix tp=3 --forbid zero=3\n\n"
        "hint: loosen --fix and --forbid\n"
    )
    assert answer.code == 1


def test_a_plan_of_other_costs_says_so(meshwright, plan_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    text = re.sub(r"(prediction:\n  step_seconds: ).*", r"\g<1>1234.5", plan_file.read_text())
    other.write_text(text)
    answer = meshwright("explain", str(other), "--why-not", "dp8")
    assert answer.err.startswith(
        f"note: {other} was written with a step of 1234.5 s; this version prices it at "
    )
    assert meshwright("explain", str(plan_file), "--why-not", "dp8").err == ""


def test_unconnected_nodes_do_not_scale(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    small = ("gpt2-tiny", "local", "--gpus", "2", "--global-batch", "8", "--sequence", "128")
    assert meshwright("plan", *small, *QUICK, "-o", str(path)).code == 0
    answer = meshwright("plot", "scaling", str(path), "--gpus", "1,4,6", "-o", str(tmp_path / "x.png"))
    assert answer.code == 2
    assert (
        "\n  4 GPUs are more than a node, and nodes are not connected; a node has 2\n  6 GPUs" in answer.err
    )


@pytest.mark.parametrize("name", ERRORS)
def test_errors(meshwright, name: str) -> None:
    words, expected = ERRORS[name]
    answer = meshwright(*words)
    assert answer.err == expected
    assert answer.code == 2


def test_nothing_fits_is_an_answer_not_a_mistake(meshwright) -> None:
    answer = meshwright("plan", *BIG[:2], "--gpus", "16", "--global-batch", "16", "--sequence", "2048")
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.startswith("error: no layout of gpt3-175b fits ")
    assert "\nhint: " in answer.err


def test_misspelt_verb(meshwright) -> None:
    answer = meshwright("paln")
    assert answer.code == 2
    assert "No such command 'paln'. Did you mean 'plan'?" in answer.err


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="unknown model"):
        main(["plan", "gpt3-175c", *BIG[1:], "--debug"])


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m meshwright catalog models | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_assumptions_about_a_hugging_face_config_are_said(meshwright, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4,'
        ' "intermediate_size": 512, "vocab_size": 1000}'
    )
    words = ("plan", str(config), *ASKED[1:], *QUICK, "--json")
    answer = meshwright(*words)
    assert answer.code == 0
    assumed = json.loads(answer.out)["assumptions"]
    assert assumed
    assert [f"assumed: {one}" for one in assumed] == answer.err.splitlines()
    assert meshwright(*words, "--quiet").err == ""


@pytest.fixture
def run_report(plan_file: Path) -> RunReport:
    plan = load_plan(plan_file)
    ranks = [
        RankReport(
            rank=rank,
            pipeline_rank=0,
            wall_seconds=(1.0, 1.1),
            thread_seconds=(0.9, 0.9),
            process_seconds=(1.5, 1.5),
            forward_backward=PhaseReport(
                wall_seconds=(0.8, 0.9),
                thread_seconds=(0.5 + rank, 0.5 + rank),
                waiting_seconds={"tp": 0.0, "dp": 0.1, "pp": 0.2},
            ),
            update=PhaseReport(
                wall_seconds=(0.2, 0.2),
                thread_seconds=(0.1, 0.1),
                waiting_seconds={"tp": 0.0, "dp": 0.05, "pp": 0.05},
            ),
            memory={"weights": 2**20, "gradients": 2**20, "optimizer": 2**21, "rest": 2**22 + rank},
            predicted_memory={
                "weights": 2.0**20,
                "gradients": 2.0**20,
                "optimizer": 2.0**21,
                "rest": 2.0**22,
            },
        )
        for rank in range(2)
    ]
    machine = Environment(torch="2", python="3", device="cpu", backend="gloo", world_size=2, cores=2)
    return make_report(
        plan, ranks, losses=[5.0, 4.5], gradient_norms=[1.0, 1.0], warm_up=0, seed=0, environment=machine
    )


def test_run_sets_measured_beside_predicted(
    meshwright, plan_file: Path, run_report: RunReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_plan(path: Path, *, steps: int, out_dir: Path, backend: str | None, on_step) -> RunReport:
        on_step({"step": 0, "loss": 5.0, "seconds": 1.1, "measured": False})
        on_step({"step": 1, "loss": 4.5, "seconds": 1.0, "measured": True})
        return run_report

    monkeypatch.setattr("meshwright.verbs.running.run_plan", run_plan)
    words = ("run", str(plan_file), "--steps", "2", "--out", str(tmp_path))
    answer = meshwright(*words)
    assert answer.code == 0
    told = answer.err.splitlines()
    assert told[0].startswith("step    0  loss 5.0000  1.10 s")
    assert told[0].endswith("warm-up")
    assert not told[1].endswith("warm-up")
    assert told[2].startswith(f"Wrote {tmp_path / 'run-report.json'}")
    assert re.search(r"^peak +8\.0 MiB +8\.0 MiB +-0\.0 %", answer.out, re.MULTILINE)
    document = json.loads(meshwright(*words, "--json").out)
    assert [line["quantity"] for line in document["comparison"]] == [
        "step_seconds",
        "compute_seconds",
        "pp_comm_and_bubble_seconds",
        "dp_comm_and_update_seconds",
        "thread_cpu_seconds",
        "tokens_per_second",
        "mfu",
        "hfu",
        "peak_bytes",
        "weights_bytes",
        "gradients_bytes",
        "optimizer_bytes",
        "rest_bytes",
    ]


def test_a_dry_run_needs_no_devices(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    assert meshwright("plan", *BIG, *QUICK, "-o", str(path)).code == 0
    answer = meshwright("run", str(path), "--dry-run", "--json")
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    assert math.prod(document["mesh"].values()) == 1024
    assert len(document["ranks"]) == document["mesh"]["pp"]
    assert sum(sum(rank["blocks"]) for rank in document["ranks"]) == load_plan(path).model.num_layers
    text = meshwright("run", str(path), "--dry-run").out
    assert max(map(len, text.splitlines())) <= 80


def test_the_parts_of_a_step_are_those_of_its_busiest_rank(run_report: RunReport) -> None:
    """Waiting for other stages is not part of the update; ZeRO's waiting inside forward and backward is with it."""
    parts = {line.quantity: line for line in time_parts(run_report)}
    assert parts["compute_seconds"].measured == 1.5  # rank 1's thread
    assert parts["pp_comm_and_bubble_seconds"].measured == pytest.approx(0.25)
    assert parts["dp_comm_and_update_seconds"].measured == pytest.approx(0.1 + 0.2 - 0.05)
    assert sum(line.predicted for line in parts.values()) == pytest.approx(run_report.predicted.step_seconds)
    on_gpu = run_report.environment.model_copy(update={"device": "NVIDIA H100"})
    there = {
        line.quantity: line for line in time_parts(run_report.model_copy(update={"environment": on_gpu}))
    }
    assert there["compute_seconds"].measured == pytest.approx(0.85 - 0.3)


def test_plot_accuracy_from_a_run_report(meshwright, run_report: RunReport, tmp_path: Path) -> None:
    report = tmp_path / "run-report.json"
    save_report(run_report, report)
    answer = meshwright("plot", "accuracy", str(report), "-o", str(tmp_path / "accuracy.svg"))
    assert answer.code == 0, answer.err
    report.write_text("{}")
    answer = meshwright("plot", "accuracy", str(report), "-o", str(tmp_path / "accuracy.svg"))
    assert (
        answer.err == f"error: `{report}` is no run report\n\nhint: meshwright run writes run-report.json\n"
    )


def test_run_on_the_wrong_machine(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    assert meshwright("plan", *BIG, *QUICK, "-o", str(path)).code == 0
    answer = meshwright("run", str(path), "--out", str(tmp_path))
    assert answer.code == 2
    assert answer.err.startswith("error: large.yaml needs 1024 GPUs; this host has ")
    assert meshwright("run", str(path), "--backend", "mpi").err.startswith("error: unknown backend `mpi`\n")


def test_only_run_and_measuring_need_torch() -> None:
    code = (
        "import sys\n"
        "from meshwright.verbs import asking, cataloguing, comparing, estimating, explaining, fitting, planning\n"
        "from meshwright.verbs import plotting, validating\n"
        "print({'torch', 'matplotlib', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
