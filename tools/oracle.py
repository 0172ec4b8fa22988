# ruff: noqa: SIM905  (names are read more easily as words of a text)
"""Judges a change that is to move no answer, in some minutes (`make oracle`).

python tools/oracle.py [PART ...]     of `golden`, `costs`, `columns`, `random`: these alone
python tools/oracle.py --freeze       writes what `costs` and `columns` compare with, after a deliberate change

    golden    the frozen answers of `tests/golden`
    costs     stage costs and estimates of 200 questions, bit for bit, with those of `tests/golden/costs.json.gz`
    columns   columns of CSV tables and frames of every verb, with those of `tests/golden/columns.txt`
    random    60 random questions that brute force answers, others than those of `make test`

The last bits of `costs` hang on processor and numpy: where it differs before a change, freeze before the change and
leave that file out of the commit. `tools/faults.py` asks how much the tests notice.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
COSTS, COLUMNS = GOLDEN / "costs.json.gz", GOLDEN / "columns.txt"
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "0")
FIRST_RANDOM = 10_000
"""Seed of the first random question; `make test` asks those from 0."""
QUESTIONS, LAYOUTS = 200, 3
SHOWN = 20
"""Most differences that are printed."""

# ---------------------------------------------------------------- stage costs and estimates

Fields = dict[str, Any]
"""What a question is made of, as JSON has it."""
CLUSTERS = """
    dgx-a100-80gb dgx-h100 hgx-h200 dgx-b200 gb200-nvl72 dgx-v100 mi300x frontier llama3-pods two-buildings
    pcie-4090 ec2-g5 gh200-quad pcie-a40-pairs a100-40gb-roce
""".split()
STACKS = """
    megatron-core megatron-2021 megatron-2022 megatron-2023 megatron-deepspeed megascale nemo deepspeed
    deepspeed-v0.5 fsdp torchtitan torchtune nanotron jax internevo meshwright meshwright-compiled meshwright xtuner
    llm-foundry bigscience deepseek aleph-alpha
""".split()
KINDS = """
    plain offload plain scenarios plain overlap plain pools plain replicas plain
""".split()
"""Of questions, in turn."""
POOLS = ("dgx-a100-80gb:8+dgx-h100:8", "dgx-h100:16+hgx-h200:8", "dgx-a100-80gb:16+mi300x:8+dgx-h100:8")
OFFLOADS = """
    states:2 states parked:2 streamed:1 states:1/activations streamed:2/activations states/drive
    states:1/parked:1 parked:1/streamed:1 activations
""".split()


def drawn_question(rng: np.random.Generator, model: str, kind: str) -> Fields:
    """One question, at random but for its model and kind; a quarter have something rare."""

    def of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    training = {
        "global_batch": int(2 ** rng.integers(4, 11)),
        "sequence_length": int(2 ** rng.integers(9, 15)),
        "precision": of("bf16", "bf16", "bf16", "fp16", "fp32", "fp8"),
        "optimizer": of(
            "adamw", "adamw", "adamw", "adamw", "sgd", "lamb", "adamw-8bit", "adafactor", "muon", "lion"
        ),
    }
    rare = {
        1: {
            "tuning": {
                "rank": 16,
                "targets": [of("attention", "all-linear")],
                "base": of(None, "nf4", "int8"),
            }
        },
        2: {"lengths": {"packing": of("pack", "bucket", "pad"), "lognormal": [300.0, 1.0]}},
        3: {"reference": of("resident", "computed")},
        4: {"freeze": [of("embedding", "first=2")]},
        5: {"gradient_dtype": "bf16"},
        6: {"state_dtype": "bf16"},
        7: {"dropout": 0.1},
        8: {"optimizer_in_backward": True},
    }.get(int(rng.integers(32)), {})
    if model.startswith(("llava", "qwen2-vl")):
        training |= {"images": 1, "sequence_length": max(1024, training["sequence_length"])}
    fields = {
        "kind": kind,
        "model": model,
        "cluster": of(*POOLS) if kind in ("pools", "replicas") else of(*CLUSTERS),
        "gpus": int(of(1, 2, 4, 8, 16, 32, 64, 256, 1024)),
        "stack": of(*STACKS),
        "training": training | rare,
        "confidence": of(0.5, 0.5, 0.5, 0.9),
        "risk": of("neutral", "averse") if kind == "scenarios" else "none",
    }
    if kind in ("pools", "replicas"):
        fields["gpus"] = None
    if kind == "offload":
        fields |= {
            "gpus": int(of(1, 2, 4, 8)),
            "stack": of("meshwright", "meshwright-compiled", "deepspeed", "fsdp"),
        }
    return fields


def question_of(fields: Fields) -> Any:
    """The question of these fields. Raises ValueError: there is none."""
    from cost_models.defaults import complete_question
    from cost_models.files import catalog
    from cost_models.files.loading import resolve_cluster
    from cost_models.specs.training import TrainingSpec

    cluster = resolve_cluster(fields["cluster"], fields["gpus"])
    if fields["kind"] == "offload":
        cluster = cluster.model_copy(update={"host_memory": 2.0**41})
    training = TrainingSpec.model_validate_json(json.dumps(fields["training"]))
    question = complete_question(
        catalog.load_model(fields["model"]), cluster, training, stack=fields["stack"]
    )
    return replace(question, confidence=fields["confidence"], risk=fields["risk"])


def drawn_layouts(rng: np.random.Generator, question: Any, kind: str) -> list[str]:
    """Some legal layouts of a question, at random, as they are written."""
    from cost_models.axes.layout import parse_layout
    from cost_models.pipeline.pools import in_pools
    from planner.rules.legality import check

    gpus, model, batch = question.cluster.num_gpus, question.model, question.training.global_batch

    def of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    found: dict[str, None] = {}
    for _ in range(400):
        tp, pp, cp = (min(2 ** int(rng.integers(0, top)), gpus) for top in (4, 4, 2))
        dp = max(gpus // (tp * pp * cp), 1)
        vpp = of(1, 1, 2, 3)
        zero = of(0, 1, 1, 2, 3)
        words = [f"tp{tp} pp{pp} cp{cp} dp{dp} mbs{of(1, 1, 2, 4)} zero{zero}"]
        words += [f"vpp{vpp}"] * (vpp > 1) + ["sp"] * of(0, 1)
        words += [f"ep{of(1, 2, 4, 8)}", f"etp{of(1, tp)}"] * bool(model.has_experts)
        words += [f"shard{of(2, 4, 8)}"] * (zero > 0 and of(0, 0, 1))
        words += [f"schedule={of('gpipe', 'zero-bubble', 'zbv', 'dualpipev')}"] * (pp > 1 and of(0, 0, 0, 1))
        words += [f"context={of('ring', 'all-gather', 'all-to-all')}"] * (cp > 1 and of(0, 1))
        words += [f"order={of('tp-pp-cp-dp', 'tp-cp-pp-dp')}"] * of(0, 0, 1)
        words += [f"recompute={of('selective', 'full')}"] * of(0, 1, 1)
        words += [f"offload={of(*OFFLOADS)}"] * (kind == "offload")
        words += [f"overlap={of('tp', 'pp', 'dp', 'tp,dp', 'tp,pp,dp')}"] * (kind == "overlap")
        with contextlib.suppress(ValueError):
            layout = parse_layout(" ".join(words))
            layout = in_pools(question, layout) if kind == "replicas" else layout
            if (
                model.num_layers >= layout.num_stages <= 64
                and batch >= layout.dp > 0
                and not check(question, layout)
            ):
                found[str(layout)] = None
        if len(found) == LAYOUTS:
            break
    return list(found)


def costs_of(fields: Fields, layouts: list[str]) -> dict[str, list[Any]]:
    """Name → of each layout its values: coefficients of its stages (in pools of each rank, or pool), and its price.

    Where types of the packages change, this function follows; names and values stay as they are frozen.
    """
    from cost_models.axes.columns import LayoutColumns
    from cost_models.axes.layout import parse_layout
    from cost_models.pipeline.pools import costs_of_ranks, replica_terms, with_pools
    from cost_models.pipeline.pricing import estimate, weighed_costs
    from cost_models.pipeline.stage_costs import COLUMNS as NAMES
    from cost_models.pipeline.stage_costs import costs_of

    question = question_of(fields)
    found: dict[str, list[Any]] = {}

    def put(name: str, value: Any) -> None:
        found.setdefault(name, []).append(value)

    for layout in map(parse_layout, layouts):
        columns = LayoutColumns.of([layout])
        match fields["kind"]:
            case "pools":
                each = [costs_of_ranks(question, with_pools(question, layout))]
            case "replicas":
                each = [costs_of(terms) for terms in replica_terms(question, columns)]
            case _:
                costs = weighed_costs(question, columns)
                each = [costs, *(costs.each_kind if costs.kinds else ())]
        for name in NAMES:
            put(name, [np.asarray(getattr(costs, name)).tolist() for costs in each])
        priced = estimate(question, layout)
        put("step seconds", [priced.step_seconds, priced.weighed_seconds])
        put("parts of the step", {**priced.time, **{f"hidden {k}": v for k, v in priced.hidden_comm.items()}})
        put("parts of memory", [dict(rank) for rank in priced.rank_memory])
        put("limits", [priced.memory_limit, priced.host_bytes, priced.host_limit, priced.drive_bytes])
        put("shares", [priced.mfu, priced.hfu, priced.causal_mfu, priced.fits_probability])
        put("placement", [list(priced.layout.layers), list(priced.layout.recompute), priced.microbatches])
    return found


def drawn_costs() -> list[Fields]:
    """Questions, their layouts and their costs, from nothing."""
    from cost_models.files import catalog

    models, drawn = sorted(catalog.names("models")), list[Fields]()
    for number in range(QUESTIONS):
        for attempt in range(100):
            rng = np.random.default_rng([number, attempt])
            kind = KINDS[number % len(KINDS)] if attempt < 20 else "plain"  # some models have no other
            fields = drawn_question(rng, models[number % len(models)], kind)
            with contextlib.suppress(ValueError):
                if layouts := drawn_layouts(rng, question_of(fields), fields["kind"]):
                    costs = costs_of(fields, layouts)
                    if "NaN" in json.dumps(costs):  # a decoder behind a tower has no price on several pools
                        continue
                    drawn.append({"asked": fields, "layouts": layouts, "costs": costs})
                    break
        else:
            raise AssertionError(f"no question {number} has a layout")
    return drawn


def check_costs(*, freeze: bool) -> list[str]:
    """Differences from the frozen costs; with `freeze` the questions stay, and their costs are written anew."""
    frozen = json.loads(gzip.decompress(COSTS.read_bytes())) if COSTS.exists() else drawn_costs()
    if freeze:
        priced = [one | {"costs": costs_of(one["asked"], one["layouts"])} for one in frozen]
        text = "[\n" + ",\n".join(map(json.dumps, priced)) + "\n]\n"
        COSTS.write_bytes(gzip.compress(text.encode(), mtime=0))
        return []
    found: list[str] = []
    largest, gone, more = 0.0, set[str](), set[str]()
    for number, one in enumerate(frozen):
        asked, layouts, before = one["asked"], one["layouts"], one["costs"]
        title = " ".join(str(asked[key]) for key in ("kind", "model", "cluster", "gpus", "stack"))
        try:
            now = json.loads(json.dumps(costs_of(asked, layouts)))
        except Exception as error:  # whatever a changed package raises is a difference
            found.append(f"{number} {title}: {type(error).__name__}: {error}")
            continue
        gone, more = gone | before.keys() - now.keys(), more | now.keys() - before.keys()
        for name in before.keys() & now.keys():
            differing = [
                (layout, *pair)
                for layout, old, new in zip(layouts, before[name], now[name], strict=True)
                for pair in differences(old, new)
            ]
            for _, old, new in differing:
                if isinstance(old, float) and isinstance(new, float):
                    largest = max(largest, abs(new - old) / max(abs(old), abs(new)))
            if differing:
                layout, old, new = differing[0]
                found.append(f"{number} {title}: {name} of `{layout}`: {old!r} was, {new!r} is")
    found += [f"no longer there: {', '.join(sorted(gone))}"] * bool(gone)
    found += [f"not frozen yet: {', '.join(sorted(more))}"] * bool(more)
    return [*found, f"largest relative difference {largest:.3g}"] if found else []


def differences(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of values that are not the same, at the same places of two documents."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for one, other in zip(old, new, strict=True):
            yield from differences(one, other)
    elif isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from differences(old[key], new[key])
    elif old != new or type(old) is not type(new):
        yield old, new


# ---------------------------------------------------------------- columns of tables

TABLES = """
    plan/again plan/pools plan/replicas plan/offload plan/deadline plan/largest-wide plan/dlrm
    plan/shop-limits plan/serve-hits estimate/fp8 estimate/replicas estimate/documents estimate/shop-json
    compare/pools compare/shop explain/small explain/pools explain/why-not explain/shop
    explain/shop-why-not reshard/to-generate advise/shop verify/small verify/shop forecast/own run/dry
    emulate/fake measure/log calibrate/from-runs validate/recommenders catalog/gpus catalog/clusters
    catalog/stacks catalog/operations
""".split()
"""Questions of `tests/golden/questions.yaml` that are asked with `--csv`; the tables of others are frozen there."""
FRAMES = (
    'mw.plan("gpt2-small", "dgx-a100-80gb", gpus=8, global_batch=64, sequence=1024, fix=["tp=1"], top=2)',
    'mw.plan("gpt2-small", "dgx-a100-80gb,dgx-h100", gpus="4,8", global_batch=64, sequence=1024, fix=["tp=1"])',
    'mw.plan("shop.yaml", "dgx-h100", gpus=2, global_batch=8192)',
    'mw.estimate("gpt2-small", "dgx-a100-80gb", None, "tp2 dp4 zero1", gpus=8, global_batch=64, sequence=1024)',
    'mw.estimate("shop.yaml", "dgx-h100", None, "table:0-3=row", gpus=2, global_batch=8192)',
    'mw.compare("small.yaml", "tp4 dp2 mbs1")',
    'mw.compare("shop-plan.yaml", "table:0=row table:1=whole@1 table:2-3=copy")',
    'mw.explain("small.yaml")',
    'mw.explain("shop-plan.yaml")',
    'mw.why_not("small.yaml", "tp4 dp2 mbs1")',
    'mw.why_not("shop-plan.yaml", "table:0=row")',
    'mw.reshard("small.yaml", "tp4 dp2 mbs1")',
    'mw.advise("small.yaml", layout="tp4 dp2 mbs1")',
    'mw.advise("shop-today.yaml")',
    'mw.forecast("small.yaml", tokens="1T", operations="llama3")',
    'mw.report("ran.yaml", run="run-report.json")',
    'mw.emulate("desk-plan.yaml", fake=True)',
    'mw.measure("small.yaml", log="train.log")',
    'mw.plan_cache("shop.yaml", "dgx-h100", gpus=1, cache="64MiB")',
    'mw.largest("llama", "hgx-h200", gpus=1, fix=["mbs=1", "recompute=full"])',
    'mw.calibrate_from_run("run-report.json")',
    'mw.calibrate_from_runs("timed.csv", stack="torchtitan", gpu="h100-sxm")',
    'mw.validate("swept.csv")',
    "mw.validate_recommenders()",
    'mw.plan("gpt2-xl", "dgx-a100-80gb:8+dgx-h100:8", global_batch=256, sequence=1024, fix=["tp=1", "pp=2"])',
    'mw.estimate("llama2-7b", "hgx-h200", None, "dp2 mbs1 zero1 offload=states:8/parked:8/activations", gpus=2,'
    ' global_batch=8, sequence=2048, stack="meshwright", host_memory="256GiB")',
)


def columns_now() -> Iterator[str]:
    """A line for each table: what was asked, and its columns."""
    sys.path[:0] = [str(ROOT / "tests"), str(GOLDEN)]
    import test_frozen

    import meshwright as mw
    from meshwright.cli import main

    with test_frozen.session() as session, contextlib.chdir(session.folder), test_frozen.slow_clock():
        for question in TABLES:
            words = shlex.split(test_frozen.QUESTIONS[tuple(question.split("/"))])
            for earlier in {session.writers[word] for word in words if word in session.writers}:
                session.answer(earlier)
            table = session.folder / "columns.csv"
            table.unlink(missing_ok=True)
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()) as said,
                contextlib.suppress(SystemExit),
            ):
                main([*words, "--csv", str(table)])
            header = table.read_text("utf-8").partition("\n")[0] if table.exists() else said.getvalue()
            yield f"--csv {question}: {header.strip()}"
        for name in ("small.yaml", "shop-plan.yaml", "shop-today.yaml", "desk-plan.yaml"):
            session.answer(session.writers[name])
        for call in FRAMES:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    columns = ", ".join(map(str, eval(call, {"mw": mw}).to_frame().columns))
            except Exception as error:  # it is compared, whatever it is
                columns = f"{type(error).__name__}: {error}".replace(str(session.folder), "FOLDER")
            yield f"{call}: {columns}"


def check_columns(*, freeze: bool) -> list[str]:
    """Tables whose columns differ from the frozen ones."""
    now = list(columns_now())
    if freeze:
        COLUMNS.write_text("\n".join(now) + "\n", "utf-8")
        return []
    before = COLUMNS.read_text("utf-8").splitlines()
    return [f"- {line}" for line in before if line not in now] + [
        f"+ {line}" for line in now if line not in before
    ]


# ---------------------------------------------------------------- all of them

HERE = {"costs": check_costs, "columns": check_columns}
TESTS = {"golden": ("tests/golden",), "random": ("tests/planner/space/test_whole_space.py",)}
PARTS = ("golden", "costs", "columns", "random")


def judged(part: str) -> tuple[str, int, float, str]:
    """A part in a process of its own: its name, exit code, seconds, what it printed."""
    began = time.monotonic()
    command = [sys.executable, __file__, "--here", part] if part in HERE else [*PYTEST, *TESTS[part]]
    told = {"PYTHONPATH": str(ROOT), "QUESTIONS": "60", "FIRST": str(FIRST_RANDOM)}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return part, done.returncode, time.monotonic() - began, done.stdout


def main() -> int:
    """Judge, and say which parts hold; exit code 1 where one does not."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    options.add_argument("--freeze", action="store_true", help="write what costs and columns compare with")
    options.add_argument("--here", choices=HERE, help=argparse.SUPPRESS)
    options.add_argument("--jobs", type=int, default=2)
    asked = options.parse_args()
    sys.path.insert(0, str(ROOT))
    if asked.freeze:
        for part in asked.parts or HERE:
            HERE[part](freeze=True)
        return 0
    if asked.here:
        found = HERE[asked.here](freeze=False)
        print(
            *found[:SHOWN],
            *([f"... {len(found) - SHOWN} more", found[-1]] if len(found) > SHOWN else []),
            sep="\n",
        )
        return int(bool(found))
    failed = 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        for part, code, seconds, printed in pool.map(judged, asked.parts or PARTS):
            print(f"{part:8} {'holds' if not code else 'DIFFERS'} ({seconds:.0f} s)", flush=True)
            if code:
                failed += 1
                print(printed)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
