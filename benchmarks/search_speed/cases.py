"""What is measured: questions by name, each with what it aims at and how many of the best layouts it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

Lengths = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question, or one for each number of GPUs of a curve."""

    name: str
    model: str
    cluster: str
    gpus: tuple[int | None, ...]
    """None: as many as the cluster says itself."""
    batch: int
    sequence: int
    aim: float | None = None
    """Seconds in which all of it is to be proven."""
    top: int = 1
    stack: str | None = None
    layers: int | None = None
    """In place of the model's own."""
    fix: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    group: str = "search"
    """`search` is the table; others are the curves of the figure."""
    at: float = field(default=0.0)
    """Where it stands on the curve."""
    label: str = ""
    """What stands there in the figure, where that is no number."""

    def questions(self) -> list[Question]:
        """What to search, in order."""
        model = catalog.load_model(self.model)
        if self.layers is not None:
            model = model.model_copy(update={"num_layers": self.layers})
        training = TrainingSpec(global_batch=self.batch, sequence_length=self.sequence)
        return [
            complete_question(model, resolve_cluster(self.cluster, gpus), training, stack=self.stack)
            for gpus in self.gpus
        ]

    @property
    def subject(self) -> str:
        """In words, for the table."""
        few = self.gpus[0]
        place = self.cluster if few is None else f"{few:,} x {self.cluster}"
        if len(self.gpus) > 1:
            place = f"{len(self.gpus)} sizes, {few:,} to {self.gpus[-1]:,} x {self.cluster}"
        stack = f", {self.stack}" if self.stack else ""
        return f"{self.model}, {place}, batch {self.batch:,} x {self.sequence:,}{stack}"


def cases() -> list[Case]:
    """All of them, the table's first."""
    return [*_published(), *_other(), _curve(), *_against_gpus(), *_against_layers(), *_against_axes()]


def _published() -> list[Case]:
    gpt3 = Case(
        name="gpt3", model="gpt3-175b", cluster="dgx-a100-80gb", gpus=(), batch=1536, sequence=2048, aim=0.5
    )
    sizes = (512, 1024, 2048, 3072, 4096)
    one_of_each = [replace(gpt3, name=f"gpt3-{gpus}", gpus=(gpus,)) for gpus in sizes]
    llama = Case(
        name="llama405b-16384",
        model="llama3.1-405b",
        cluster="dgx-h100",
        gpus=(16384,),
        batch=2048,
        sequence=8192,
        aim=2.0,
    )
    return [
        *one_of_each,
        *(replace(case, name=f"{case.name}-top5", top=5) for case in one_of_each),
        replace(gpt3, name="1t-3072", model="megatron-1t", gpus=(3072,), batch=3072),
        llama,
        replace(llama, name="llama405b-16384-long", batch=128, sequence=131072),
        Case(
            name="deepseek-v3-2048",
            model="deepseek-v3",
            cluster="hgx-h800",
            gpus=(2048,),
            batch=15360,
            sequence=4096,
            aim=5.0,
        ),
    ]


def _other() -> list[Case]:
    h100 = Case(name="", model="llama3.1-405b", cluster="dgx-h100", gpus=(), batch=0, sequence=8192)
    return [
        replace(h100, name="100k", gpus=(100_000,), batch=12_500, aim=5.0),
        replace(
            h100, name="100k-1t", model="megatron-1t", gpus=(100_000,), batch=12_500, sequence=2048, aim=5.0
        ),
        replace(
            h100,
            name="two-pools",
            model="gpt3-175b",
            cluster="dgx-a100-80gb:512+dgx-h100:512",
            gpus=(None,),
            batch=1536,
            sequence=2048,
            aim=5.0,
        ),
        replace(h100, name="torchtitan-512", model="llama3-70b", gpus=(512,), batch=1024, stack="torchtitan"),
        replace(h100, name="meshwright-64", model="llama3-8b", gpus=(64,), batch=256, stack="meshwright"),
    ]


def _curve() -> Case:
    """Numbers of GPUs with the factors 2, 3 and once 5, which a batch of 1536 and some 96 stages can share."""
    sizes = sorted(
        2**twos * 3**threes * fives
        for twos in range(3, 15)
        for threes in range(5)
        for fives in ((1, 5) if threes < 2 else (1,))
        if 64 <= 2**twos * 3**threes * fives <= 16384
    )
    return Case(
        name="curve-50",
        model="gpt3-175b",
        cluster="dgx-a100-80gb",
        gpus=(sizes[0], *sizes[4:]),
        batch=1536,
        sequence=2048,
        aim=15.0,
    )


def _against_gpus() -> list[Case]:
    base = Case(name="", model="gpt3-175b", cluster="dgx-a100-80gb", gpus=(), batch=1536, sequence=2048)
    return [
        replace(base, name=f"gpus-{gpus}", gpus=(gpus,), group="gpus", at=gpus)
        for gpus in (64, 256, 1024, 4096, 16384, 65536, 131072)
    ]


def _against_layers() -> list[Case]:
    base = Case(name="", model="gpt3-175b", cluster="dgx-a100-80gb", gpus=(1024,), batch=1536, sequence=2048)
    return [
        replace(base, name=f"layers-{layers}", layers=layers, group="layers", at=layers)
        for layers in (24, 48, 72, 96, 120, 144, 192)
    ]


def _against_axes() -> list[Case]:
    """From tp, pp, dp and mbs alone, an axis more at a time; the last are those of experts."""
    added: Sequence[tuple[str, tuple[str, ...]]] = (
        ("tp pp dp mbs", ()),
        ("vpp", ("vpp",)),
        ("sp", ("sp",)),
        ("zero", ("zero",)),
        ("recompute", ("recompute",)),
        ("cp", ("cp",)),
        ("shard", ("shard",)),
        ("order", ("order",)),
        ("ep", ("ep",)),
        ("etp", ("etp",)),
    )
    axes = [axis for _, own in added for axis in own]
    base = Case(name="", model="mixtral-8x22b", cluster="dgx-h100", gpus=(512,), batch=1024, sequence=4096)
    found = []
    for number, (label, own) in enumerate(added):
        axes = [axis for axis in axes if axis not in own]
        found.append(
            replace(base, name=f"axes-{number}", forbid=tuple(axes), group="axes", at=number, label=label)
        )
    return found
