"""Options that several verbs share: the question, the restrictions of a plan, its objective, and the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from cost_models.flags import Options, Panel, argument, flag, switch

if TYPE_CHECKING:
    from datetime import date
    from pathlib import Path

    from cost_models.documents import Document
    from cost_models.specs.cluster import ClusterSpec, MixedCluster, OperationsSpec
    from cost_models.specs.hardware import HardwareProfile
    from cost_models.specs.recommender.model import RecommenderSpec
    from cost_models.specs.recommender.training import RecommenderTraining
    from cost_models.specs.training import LengthsSpec, TrainingSpec
    from cost_models.specs.transformer import TransformerSpec
    from planner.search.search import Budget

ModelInput: TypeAlias = "str | TransformerSpec | RecommenderSpec | Document"
"""Model: a catalogue name or file, a spec of any family, or the parsed contents of a file."""
ClusterInput: TypeAlias = "str | ClusterSpec | MixedCluster | Sequence[str | ClusterSpec]"
"""Cluster: a catalogue name or file, a spec, or several of these."""
OperationsInput: TypeAlias = "str | OperationsSpec | None"
"""Operations of a cluster: a catalogue name or file, or a spec."""
TrainingInput: TypeAlias = "str | Path | TrainingSpec | RecommenderTraining | Mapping[str, Any] | None"
"""Training job: a file, or a spec of any family."""
TIME_LIMIT = 60.0
"""Seconds after which a search of the command line ends with the gap it has proven, so that no question hangs."""


TUNING = (
    *("task", "rank", "targets", "base_precision", "reference", "freeze"),
    *("lengths", "packing", "answers", "decoder_sequence", "images"),
)
"""Names of the options on fine-tuning and on the sequences that are trained on."""
AUTO = "auto"
"""Value of `--every` that asks for the best checkpoint interval."""


def tokens_flag(panel: Panel = "job", listed_after: str = "") -> Any:
    """Make the option for the number of tokens to train on; None means the number in the question."""
    return flag("N", "Tokens to train on, e.g. 1.4T.", panel=panel, listed_after=listed_after)


class Nouns(Options):
    """Options that name the model and the cluster, each a catalogue name, a file or a spec."""

    model: ModelInput = field(metadata=argument("MODEL", completion="models"))
    """Catalogue name, Hugging Face config.json, or YAML file."""
    cluster: ClusterInput = field(metadata=argument("CLUSTER", completion="clusters"))
    """Catalogue name or YAML file."""


job_flag, job_switch = partial(flag, panel="job"), partial(switch, panel="job")
machine_flag, goal_flag = partial(flag, panel="machine"), partial(flag, panel="objective")
search_flag = partial(flag, panel="search")
words_flag = partial(search_flag, kind=list[str], default=())


class Job(Options, kw_only=True):
    """Options of a training job, its hardware and software: a file or a spec, and flags that override single
    fields."""

    gpus: int | str | Sequence[int] | None = machine_flag("N", kind=int)
    """GPUs to use; the cluster is sized to them."""
    global_batch: int | str | None = job_flag("N")
    """Sequences per optimizer step, or '4M tokens'."""
    sequence: int | str | None = job_flag("N")
    """Tokens per sequence, e.g. 8192 or 8K."""
    decoder_sequence: int | str | None = job_flag("N")
    """Tokens per sequence of the decoder after an encoder; default: as many."""
    images: int | None = job_flag("N", minimum=1)
    """Images per sequence of a model with a vision tower; default 1."""
    precision: str | Sequence[str] | None = job_flag("TYPE")
    """bf16, fp16, fp32, tf32, fp8 or fp4."""
    dropout: float | None = job_flag("SHARE")
    """Dropout of hidden activations; default: the stack's usual."""
    optimizer: str | None = job_flag("NAME")
    """adamw (default), paged-adamw, adamw-8bit, paged-adamw-8bit, adamw-4bit, lion, lion-8bit, lamb, sgd, muon,
    adafactor."""
    optimizer_in_backward: bool = job_switch()
    """Update each parameter as soon as it has its gradient."""
    state_dtype: str | None = job_flag("TYPE")
    """Type of updated weights and moments: fp32 (default) or bf16."""
    task: str | None = job_flag("TASK")
    """full (default), lora, qlora, dpo or reward."""
    rank: int | None = job_flag("N", minimum=1)
    """Rank of adapters; default 16."""
    targets: str | Sequence[str] | None = job_flag("NAME[,NAME]")
    """Matrices with adapters: attention, mlp, all-linear (default), q, ..."""
    base_precision: str | None = job_flag("TYPE")
    """Type of frozen matrices: bf16, int8 or nf4."""
    freeze: str | Sequence[str] | None = job_flag("PART[,PART]")
    """Parts that are not trained: tower, projector, language, embedding, first=N."""
    reference: str | None = job_flag("HOW")
    """Reference model of dpo: resident (default), host, or computed once."""
    lengths: str | LengthsSpec | None = job_flag("FILE")
    """Tokens of each document: a file, or 'lognormal(MEAN,SIGMA)'."""
    packing: str | None = job_flag("HOW")
    """Sequences made of documents: pack (default), pad or bucket."""
    answers: float | None = job_flag("SHARE")
    """Share of tokens that the loss counts (answers only)."""
    training: TrainingInput = job_flag("FILE")
    """Training YAML; flags override it."""
    stack: str | None = machine_flag("NAME", completion="stacks")
    """Software stack: catalogue name or file."""
    profile: str | HardwareProfile | None = machine_flag("NAME", completion="profiles")
    """Hardware profile: catalogue name or file."""


class Fitting(Options, kw_only=True):
    """Options on the probability with which a layout must fit in memory, and on the trainer whose rules it obeys."""

    confidence: float | str | None = search_flag("SHARE")
    """Minimum probability of fitting in memory, e.g. 95%; default 54.8%."""
    host_memory: str | None = machine_flag("SIZE")
    """Memory of each host, e.g. 128GiB; default: the cluster's."""
    trainer: str | None = search_flag("TRAINER", names=("--for",))
    """Keep to what it can run: megatron, nemo, torchtitan, deepspeed, accelerate, axolotl."""


class Request(Fitting, Job, Nouns):
    """Options that make a question: model, cluster, training job, and how surely a layout must fit in memory."""

    @property
    def changes(self) -> tuple[str, ...]:
        """Changes of the model and the job that `--allow` permits (`cost_models.specs.training`); always empty unless
        a subclass has `--allow`."""
        return ()


class Limits(Options, kw_only=True):
    """Options that restrict the layouts of a plan, as the user wrote them."""

    fix: Sequence[str] = words_flag("AXIS=VALUE")
    """Restrict an axis, e.g. tp=8, tp=2,4, pp>=2."""
    forbid: Sequence[str] = words_flag("CHOICE")
    """Exclude a choice, e.g. zero3, cp or recompute=full."""
    allow: Sequence[str] = words_flag("AXIS")
    """Also search offload, overlap, replicas, parallel-block, window=N, lamb or hot.

    Axes of a layout and changes of the mathematics that a search leaves out unless they are named here.
    """
    together: Sequence[str] = words_flag("TABLE,TABLE")
    """Recommenders: tables to place on the same GPU."""
    max_memory: str | None = machine_flag("SIZE")
    """Device memory to plan with, e.g. 70GiB."""

    def __post_init__(self) -> None:
        """Turn options given as one word into tuples of words."""
        for name in ("fix", "forbid", "allow", "together"):
            words = getattr(self, name)
            object.__setattr__(self, name, (words,) if isinstance(words, str) else tuple(words))

    @property
    def changes(self) -> tuple[str, ...]:
        """Words of `--allow` that permit a change of the training mathematics."""
        return self._allowed(are_changes=True)

    @property
    def opened(self) -> tuple[str, ...]:
        """Words of `--allow` that add an axis of layouts to the search."""
        return self._allowed(are_changes=False)

    def _allowed(self, *, are_changes: bool) -> tuple[str, ...]:
        """Words of `--allow` of one kind: changes of the training mathematics if `are_changes`, else axes of
        layouts."""
        from cost_models.specs.training import is_change

        words = [word for text in self.allow for word in text.split(",")]
        return tuple(word for word in words if is_change(word) == are_changes)


class Failures(Options, kw_only=True):
    """Options that name a cluster's operations (failure rates, restarts, storage), which lengthen the predicted
    training time."""

    operations: OperationsInput = goal_flag("NAME", completion="operations", listed_after="deadline")
    """Failure rates and storage: catalogue name or file.

    Operations of the cluster; None: the usual ones if an end is asked for, else none.
    """


class Ending(Failures, kw_only=True):
    """Options for predicting when a training job ends and what it costs: operations, start date, price of its
    GPUs."""

    price: str | float | None = goal_flag("MONEY")
    """Price of one GPU-hour, e.g. 2.50."""
    start: str | date | None = goal_flag("DATE")
    """First day of training, e.g. 2027-01-04."""


class Operations(Failures, kw_only=True):
    """Options for a cluster's operations (failures, restarts, storage): a name or file, and flags that override
    it."""

    mtbf: str | None = goal_flag("TIME")
    """GPU-hours between failures, e.g. 50000h."""
    restart: str | None = goal_flag("TIME")
    """Time from a detected failure to the first step."""
    storage: str | None = goal_flag("RATE")
    """Bandwidth of checkpoint storage, e.g. '200 GB/s'."""
    spares: int | None = goal_flag("N", minimum=0)
    """Standby nodes."""


class Amount(Options, kw_only=True):
    """Options for how much is trained on (tokens or samples), and for the price of a GPU-hour."""

    tokens: str | float | None = tokens_flag("objective", listed_after="objective")
    samples: str | int | None = goal_flag("N", listed_after="tokens")
    """Samples to train on: documents, or whole sequences."""
    epochs: float | None = goal_flag("N", listed_after="samples")
    """Passes over the samples."""
    price: str | float | Sequence[float] | None = goal_flag("MONEY[,MONEY]", listed_after="epochs")
    """Price of one GPU-hour; one per cluster.

    Price of one GPU-hour; for several clusters one price for each, in their order.
    """


class Goal(Amount, Failures, kw_only=True):
    """Options that choose the objective (time, cost, ...), with the tokens, price or deadline that it needs."""

    objective: str | None = goal_flag("WHAT")
    """time, mfu, gpu-hours, cost, memory or gpus; default: cost if there is a price, else time.

    Objective; None: the cost if there is a price, else time.
    """
    deadline: str | None = goal_flag("TIME")
    """Time in which all tokens are to be trained, e.g. 30d."""


class Searching(Options, kw_only=True):
    """Options that limit the time of a search; in Python a `budget` replaces the time limit."""

    time_limit: float | None = search_flag(
        "SECONDS", minimum=0.001, command_default=TIME_LIMIT, is_part_of_question=False, listed_after="top"
    )
    """Time limit of the search; then the gap proved so far is printed."""
    budget: Budget | None = None

    @property
    def spending(self) -> Budget:
        """Limits of the search: `budget`, else `time_limit` seconds, with the best layout so far kept on Ctrl-C."""
        from planner.search.search import Budget

        return self.budget or Budget(time_limit=self.time_limit, keep_on_interrupt=True)


class Proving(Searching, kw_only=True):
    """Options that limit the time of a search and choose the solver that proves its answer."""

    solver: str | None = search_flag("HOW", is_part_of_question=False, listed_after="time_limit")
    """Solver: search (default), or ilp for one integer program."""
