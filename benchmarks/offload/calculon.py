"""Compare Calculon's choice of what to offload with ours: Megatron-22B on a few A100 of its catalogue.

    python benchmarks/offload/calculon.py CLONE [GPUS]

CLONE is a working copy of github.com/calculon-ai/calculon, whose own code prices every layout of its search: transfers
of weights (-w), activations (-a) and optimizer states (-o) are hidden behind the block that runs, and each of two tiers
must hold its part. For each combination of switches its best layout is then written in our words and priced here.
Only overlap of collectives is left out of its search: what it may hide there is no choice of ours.
"""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from planner.rules.legality import require_legal

GIB = 2.0**30
CAPACITY = 80 * GIB
"""Of a GPU; its file of the system leaves it open."""
BLOCKS = 48
BUFFERS = 2
"""Blocks that its rules hold on the GPU of what is on the host."""
RECOMPUTE = {"full": "full", "attn_only": "selective", "none": "none"}
RESIDENCY = {(False, False): "", (False, True): "parked", (True, True): "streamed"}
"""(weights, states) on the host; weights without their states have no word here."""


class Priced(NamedTuple):
    """An execution by its rules: seconds of a step, bytes of either tier on a GPU."""

    seconds: float
    device: float
    host: float
    execution: dict[str, Any]

    @property
    def switches(self) -> tuple[bool, ...]:
        """Whether weights, activations and states are on the host."""
        return tuple(self.execution[f"{name}_offload"] for name in ("weight", "activations", "optimizer"))

    @property
    def plain(self) -> tuple[Any, ...]:
        """What it is without states and weights on the host."""
        return tuple(
            value
            for name, value in self.execution.items()
            if name not in {"weight_offload", "optimizer_offload"}
        )


def main() -> None:
    """Print the table of calculon.md."""
    clone, gpus = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4
    sys.path.insert(0, str(clone))
    question, every = asked(gpus), list(searched(clone, gpus))
    fitting = [one for one in every if one.device <= CAPACITY]
    print(f"{gpus} GPUs, batch {gpus}\n")
    print("| -w -a -o | by its rules | GPU, GiB | host, GiB | in our words | here | GPU, GiB | host, GiB |")
    print("|--|--|--|--|--|--|--|--|")
    for switches in sorted({one.switches for one in fitting}):
        best = min((one for one in fitting if one.switches == switches), key=lambda one: one.seconds)
        theirs = f"{best.seconds:.2f} s | {best.device / GIB:.1f} | {best.host / GIB:.1f}"
        named = " ".join("yes" if one else "no" for one in switches)
        print(f"| {named} | {theirs} | {ours(question, best.execution)} |")
    count, best = min(mixes(every), key=lambda one: one[1].seconds)
    print(
        f"\nIts best: {min(one.seconds for one in fitting):.2f} s. Best of ours by its rules: {best.seconds:.2f} s, "
        f"`{layout_of(best.execution, _residency(best), count)}`, {best.device / GIB:.1f} GiB on a GPU."
    )


def mixes(every: Sequence[Priced]) -> Iterator[tuple[int, Priced]]:
    """Layouts of ours by its rules: of their blocks only as many on the host as must be.

    Its rules price every block by itself, so that a mix costs the mean of both, weighted by blocks; its buffers are two
    blocks more.
    """
    resident = {one.plain: one for one in every if not _residency(one)}
    for one in every:
        none = resident.get(one.plain)
        if (
            one.execution["weight_offload"],
            one.execution["optimizer_offload"],
        ) not in RESIDENCY or none is None:
            continue
        blocks = BLOCKS // one.execution["pipeline_par"]
        if none.device <= CAPACITY:
            yield 0, none
        elif one.device <= CAPACITY and one is not none:
            block = (none.device - one.device) / (blocks - BUFFERS)
            count = min(blocks, math.ceil((none.device - CAPACITY) / block) + BUFFERS)
            share = count / blocks
            yield (
                count,
                Priced(
                    none.seconds + share * (one.seconds - none.seconds),
                    none.device - (count - BUFFERS) * block,
                    none.host + share * (one.host - none.host),
                    one.execution,
                ),
            )


def _residency(one: Priced) -> str:
    return RESIDENCY.get((one.execution["weight_offload"], one.execution["optimizer_offload"]), "weights")


def searched(clone: Path, gpus: int) -> Iterator[Priced]:
    """Every execution of its search that its rules allow, with what it needs on either tier."""
    read_json_file = import_module("calculon.io").read_json_file
    Llm = import_module("calculon.llm.llm").Llm
    System = import_module("calculon.system").System
    app = Llm.Application(read_json_file(str(clone / "models" / "megatron-22B.json")))
    system, log = System(read_json_file(str(clone / "systems" / "a100_80e.json"))), logging.Logger("calculon")
    for execution in executions(Llm, app, gpus):
        try:
            model = Llm(app, log)
            model.compile(system, Llm.Execution.from_json(execution))
            model.run(system)
        except (Llm.Error, AssertionError):
            continue
        yield Priced(
            model.get_total_time(), model.get_mem_tier1_cap_req(), model.get_mem_tier2_cap_req(), execution
        )


def executions(llm: Any, app: Any, gpus: int) -> Iterator[dict[str, Any]]:
    """Its search for one batch of a sequence a GPU, without overlap of collectives."""
    for tp in llm.get_all_tensor_parallelisms(gpus, app.hidden, app.attn_heads):
        for pp in llm.get_all_pipeline_parallelisms(gpus, tp, app.num_blocks):
            dp = gpus // (tp * pp)
            for chunks, recompute, sharded, comm, micro, *switches in itertools.product(
                llm.get_valid_pipeline_interleavings(app.num_blocks, pp),
                RECOMPUTE,
                (False, True) if dp > 1 else (False,),
                ("ar", "rs_ag") if tp > 1 else ("ar",),
                llm.get_valid_microbatch_sizes(app.seq_size, tp, dp, gpus, pp),
                *[(False, True)] * 3,
            ):
                weights, activations, states = switches
                if activations and recompute == "full":
                    continue
                nets = {f"{axis}_par_net": 0 for axis in ("tensor", "pipeline", "data")}
                yield nets | {
                    "num_procs": gpus,
                    "tensor_par": tp,
                    "pipeline_par": pp,
                    "data_par": dp,
                    "batch_size": gpus,
                    "microbatch_size": micro,
                    "datatype": "float16",
                    "fused_activation": True,
                    "attention_type": "multihead",
                    "activation_recompute": recompute,
                    "pipeline_interleaving": chunks,
                    "optimizer_sharding": sharded,
                    "tensor_par_comm_type": comm,
                    "tensor_par_overlap": "none",
                    "seq_par_ag_redo": False,
                    "data_par_overlap": False,
                    "weight_offload": weights,
                    "activations_offload": activations,
                    "optimizer_offload": states,
                    "training": True,
                }


def asked(gpus: int) -> Question:
    """The same question here; this project's executor keeps blocks in every way."""
    training = TrainingSpec(
        global_batch=gpus, sequence_length=2048, precision="bf16", recompute=("full", "selective", "none")
    )
    cluster = catalog.load_cluster("dgx-a100-80gb").model_copy(update={"gpus_per_node": gpus})
    model, stack = catalog.load_model("megatron-22b"), catalog.load_stack("meshwright")
    return complete_question(model, cluster, training, stack=stack)


def ours(question: Question, execution: dict[str, Any]) -> str:
    """An execution in our words, our seconds, and bytes on a GPU and, for each, on the host; or why not."""
    where = (execution["weight_offload"], execution["optimizer_offload"])
    if where not in RESIDENCY:
        return "weights without their states: no word | – | – | –"
    layout = layout_of(execution, RESIDENCY[where])
    try:
        require_legal(question, layout)
    except InputError as error:
        return f"`{layout}`: {error.headline} | – | – | –"
    found = estimate(question, layout)
    host = found.host_bytes / question.cluster.gpus_per_node
    return f"`{layout}` | {found.step_seconds:.2f} s | {found.peak_bytes / GIB:.1f} | {host / GIB:.1f}"


def layout_of(execution: dict[str, Any], residency: str, count: int | None = None) -> Layout:
    """The layout that an execution is, with so many blocks on the host; None: all."""
    if residency and count is not None:
        residency = f"{residency}:{count}" if count else ""
    away = "/".join(filter(None, (residency, "activations" if execution["activations_offload"] else "")))
    words = (
        f"tp{execution['tensor_par']} pp{execution['pipeline_par']} dp{execution['data_par']}",
        f"vpp{execution['pipeline_interleaving']}" if execution["pipeline_interleaving"] > 1 else "",
        f"mbs{execution['microbatch_size']} zero{int(execution['optimizer_sharding'])}",
        "sp" if execution["tensor_par_comm_type"] == "rs_ag" else "",
        f"recompute={RECOMPUTE[execution['activation_recompute']]}",
        f"offload={away}" if away else "",
    )
    return parse_layout(" ".join(filter(None, words)))


if __name__ == "__main__":
    main()
