"""`plan --largest` and `--longest`: the largest model of a family, or the longest sequence, that fits on a
cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_models.documents import Document, printable
from cost_models.errors import InputError, Problem, UnknownNameError
from cost_models.files import catalog
from cost_models.files.loading import resolve_model
from cost_models.memory.device import usable_host_memory
from cost_models.pipeline.pricing import trust_of
from cost_models.question import Question
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from meshwright.inputs.goals import confident, known_word, restrictions_of
from meshwright.inputs.problems import Problems, require_given
from meshwright.inputs.questions import cluster_of, one_count, question_of
from meshwright.records import fields_of
from meshwright.records.estimates import estimate_record, estimate_row, question_record
from meshwright.render.ranked import question_header
from meshwright.render.tables import Table, table
from meshwright.render.words import percent, sentence_list, spaced, wrapped
from meshwright.terminal.answers import SavedAnswer
from meshwright.verbs.contract import option_word
from meshwright.verbs.plan import LargestOptions
from planner.answers.feasibility import LargestSize, largest_sizes
from planner.answers.optimum import PROVEN
from planner.plan import Plan, make_plan, save_plan
from planner.search.search import Budget
from planner.space.obstacles import notes_of
from planner.space.restrictions import Restrictions
from planner.space.sizes import LADDERS, SEQUENCE_STEP, WAYS, By, Family, family_named


class Largest(SavedAnswer):
    """Answer of `plan --largest`: the largest models of a family that fit on a cluster."""

    suggestion = "meshwright explain {path}, meshwright run {path}"
    family: Family
    question: Question
    """Question, asked with the family's base model."""
    restrictions: Restrictions
    assumptions: tuple[str, ...] = ()
    """Sentences on assumptions made to read the question."""
    sizes: tuple[LargestSize, ...] = ()
    """Largest sizes: without offload, with each kind of offload of the stack, and with all kinds."""
    searches: int = 0
    seconds: float = 0.0
    """Seconds of all searches together."""

    def answer(self, budget: Budget) -> Largest:
        """Find the largest model size that fits, for each choice of offload, within the time limit of `budget`."""
        sizes = tuple(largest_sizes(self.question, self.family, self.restrictions, budget))
        return replace(self, sizes=sizes, searches=budget.searches, seconds=budget.seconds_spent)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on effects that the answer leaves out."""
        return notes_of(self.question, self.restrictions)

    @property
    def largest(self) -> LargestSize:
        """Largest size over all choices of offload; among equals the one with the fastest step."""
        speeds = [0.0 if one.result is None else 1 / one.result.best.step_seconds for one in self.sizes]
        return max(zip(self.sizes, speeds, strict=True), key=lambda pair: (pair[0].size, pair[1]))[0]

    @property
    def plan(self) -> Plan | None:
        """Plan of the largest size; None if nothing fits."""
        best = self.largest
        if best.question is None or best.result is None:
            return None
        return make_plan(best.question, best.result.best, None, self.restrictions)

    def save(self, path: str | Path) -> None:
        """Write the plan of the largest size to a file, if there is a plan."""
        if (plan := self.plan) is not None:
            save_plan(plan, Path(path))

    @property
    def fits(self) -> bool:
        """Whether any size fits."""
        return self.plan is not None

    def remarks(self, *, interrupted: bool = False) -> tuple[str, ...]:
        """Notes below the answer on sizes and layouts that are not proved."""
        notes = []
        unproved = [one for one in self.sizes if not (one.next_fails or one.size == self.family.largest_size)]
        if any(one.comparable for one in unproved) and not interrupted:
            notes.append("warning: time ran out before every size was decided; allow more with --time-limit")
        elif unproved and not interrupted:
            larger = "of blocks of several kinds, or in chunks alone, larger may fit"
            notes.append(f"note: the largest found: {larger}")
        gaps = [one.result.certificate.gap for one in self.sizes if one.result is not None]
        if max(gaps, default=0.0) > PROVEN:
            distance = f"within {percent(max(gaps))} of the fastest"
            distance = distance if max(gaps) < 1 else "none proved the fastest"
            proved = "" if unproved else "sizes are proved, "
            notes.append(f"note: {proved}layouts are the best found in a few seconds each, {distance}")
        return tuple(notes)

    def csv_rows(self) -> list[dict[str, Any]]:
        """Flat row for each choice of offload: its largest size and the plan."""
        plans = [{} if one.result is None else estimate_row(one.result.best) for one in self.sizes]
        return [self._size(one) | plan for one, plan in zip(self.sizes, plans, strict=True)]

    def document(self) -> dict[str, Any]:
        """JSON document: question, largest sizes with their plans, and the number of searches."""
        family, host = self.family, self.question.cluster.host_memory
        fields = {"model": None, "family": family.name, "by": family.by, "host_memory": host}
        sizes = [
            {
                **self._size(one),
                "next": self._shape(one.size + 1) | {"fits": False if one.next_fails else None},
                "plan": one.result and estimate_record(one.result.best),
            }
            for one in self.sizes
        ]
        return {
            "question": question_record(self.question) | fields,
            "assumptions": list(self.assumptions),
            "sizes": sizes,
            "searches": self.searches,
        }

    def _size(self, size: LargestSize) -> dict[str, Any]:
        """JSON object of the largest size with certain offloads: parameters, shape, and whether the next size is
        proved not to fit."""
        return {"offloads": "+".join(size.offloads), **self._shape(size.size), "next_fails": size.next_fails}

    def _shape(self, size: int) -> dict[str, Any]:
        """JSON object of one model size of the family: parameters, blocks, width, and the sequence length if
        sequences grow."""
        if not 0 < size <= self.family.largest_size:
            return {"parameters": 0, "num_layers": 0, "hidden_size": 0}
        length = self.family.sequence(size)
        shape = fields_of(self.family.model(size), "num_layers", "hidden_size")
        longest = {} if length is None else {"sequence_length": length}
        return {"parameters": self.family.parameters(size), **shape, **longest}

    def view(self) -> tuple[str | Table, ...]:
        """Text: the question, the table of largest sizes, and the proofs."""
        family, question = self.family, self.question
        subject = f"sizes of {family.name} by {family.by}"
        if family.by == "sequence":
            subject, question = f"longest sequence of {family.name}", self.largest.question or question
        limits = [one.result.best.memory_limit for one in self.sizes if one.result is not None]
        memory = f"{format_bytes(max(limits, default=question.cluster.gpu.memory))} of memory per GPU"
        if (host := question.cluster.host_memory) is not None:
            usable = format_bytes(usable_host_memory(question.cluster))
            memory += f", and {usable} of the {format_bytes(host)} of each host"
        trust = trust_of(max(question.pools, key=lambda pool: pool.hardware.median_error or 1.0))
        header = f"{question_header(question, trust, subject=subject)}\n{wrapped(memory)}"
        headers = ("offloads", "size", "shape", "step", "tok/s", "peak mem", "host mem", "layout")
        sizes = table(headers, list(map(self._cells, self.sizes)), words=("layout",), names=("offloads",))
        return spaced(header, sizes, proofs_sentence(family, self.sizes, self.searches, self.seconds))

    def _cells(self, size: LargestSize) -> tuple[str, ...]:
        """Cells of a largest size as text: offloads, size, shape, step, tokens/s of all GPUs, memory, layout."""
        family, offloads = self.family, "any"
        if len(size.offloads) <= 1:
            offloads = size.offloads[0] if size.offloads else "nothing"
        if not size.size:
            return (offloads, *[_NOTHING] * 6, "nothing fits")
        head = offloads, format_count(float(family.parameters(size.size))), shape_of(family, size.size)
        if size.result is None:
            return (*head, *[_NOTHING] * 4, "not searched in time")
        best = size.result.best
        speed = format_seconds(best.step_seconds), grouped(round(best.tokens_per_second))
        host = format_bytes(best.host_bytes) if any(best.layout.offload) else _NOTHING
        return (*head, *speed, format_bytes(best.peak_bytes), host, best.layout.brief)


_NOTHING = "-"


def shape_of(family: Family, size: int) -> str:
    """Shape of one model size of a family as text: "39x4096" (blocks by width), or "12,288 tokens" if sequences
    grow."""
    if (length := family.sequence(size)) is not None:
        return f"{grouped(length)} tokens"
    model = family.model(size)
    return f"{model.num_layers}x{model.hidden_size}"


def proofs_sentence(family: Family, sizes: Sequence[LargestSize], searches: int, seconds: float) -> str:
    """Sentence that says for which sizes it is proved that no layout fits, and hence which sizes are the
    largest; or that all fit, or that nothing is proved."""
    failing = sorted({one.size + 1 for one in sizes if one.next_fails})
    work = f"{counted(searches, 'search')} in {format_seconds(seconds)}"
    if all(one.size == family.largest_size for one in sizes):
        return wrapped(f"All fit: {shape_of(family, family.largest_size)} is the largest there is; {work}")
    if not failing:
        return wrapped(f"Nothing proved: each is the largest found; {work}")
    shapes = sentence_list([shape_of(family, size) for size in failing])
    subject = "each is the largest" if all(one.next_fails for one in sizes) else "those below are the largest"
    unit = f"multiple of {SEQUENCE_STEP} tokens" if family.by == "sequence" else "size"
    nearest = f"next ({shapes})" if len(failing) == 1 else f"next ones ({shapes})"
    return wrapped(f"Proved: no {unit} from the {nearest} on fits in any layout, so {subject}; {work}")


USUAL_SEQUENCE = 2048
USUAL_BATCH = 8
"""Default sequences per GPU in a step."""
_EXAMPLE = "meshwright plan llama hgx-h200 --largest --gpus 1 --host-memory 128GiB --stack meshwright"


def ask(options: LargestOptions) -> Largest:
    """Read the options of `plan --largest` or `--longest`, without searching.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    require_given({"FAMILY": options.model, "CLUSTER": options.cluster}, "nothing to look for", _EXAMPLE)
    reading = Problems()
    reason = f"is none of {', '.join(f'`{word}`' for word in WAYS)}"
    way = reading.read(known_word, WAYS, options.by or "depth", "--by", "cannot tell what grows", reason)
    if way == "sequence" and options.sequence is not None:
        said = "is what is looked for: leave it out, or leave out --longest"
        problem = Problem("--sequence", said)
        reading.errors.append(InputError("one length of sequences was named", problems=[problem]))
    family = reading.read(_family, options.model, way or "depth")
    restrictions = reading.read(restrictions_of, options, options.trainer)
    count = reading.read(one_count, options.gpus, "--largest asks about one")
    cluster = reading.read(cluster_of, options.cluster)
    # to read the rest of what is wrong
    base = catalog.load_model("llama2-7b") if family is None else family.base
    if cluster is not None:
        usual = {"global_batch": USUAL_BATCH * max(count or cluster.num_gpus, 1)}
        usual["sequence"] = min(USUAL_SEQUENCE, base.max_positions)
        names = [] if options.training is not None else list(usual)
        job: dict[str, Any] = {name: usual[name] for name in names if getattr(options, name) is None}
        answer = reading.read(question_of, replace(options, model=base, gpus=count or None, **job))
    reading.require()
    question, assumptions = answer
    if flags := [f"{option_word(name)} {job[name]}" for name in job if not name == way == "sequence"]:
        assumptions = (f"`{' '.join(flags)}`", *assumptions)
    if "offload" in options.forbid:
        question = replace(question, stack=question.stack.model_copy(update={"residencies": ()}))
    elif question.cluster.gpu.kind != "cpu":
        restrictions = replace(restrictions, allowed=restrictions.allowed | {"offload"})
    limits = confident(restrictions, question)
    return Largest(family=family, question=question, restrictions=limits, assumptions=assumptions)


def _family(name: str | TransformerSpec | RecommenderSpec | Document, way: By) -> Family:
    """Family of models of growing size: a published family by its name, or one model whose depth or sequence length
    grows."""
    assert not isinstance(name, (RecommenderSpec, Document)), "a family is named"
    if isinstance(name, str) and way != "sequence" and (family := family_named(name, way)) is not None:
        return family
    try:
        model = resolve_model(name).spec if isinstance(name, str) else name
    except UnknownNameError:
        if way == "sequence":
            raise
        names = (*LADDERS, *catalog.names("models"))
        hint = f"families: {', '.join(LADDERS)}; by depth also any model"
        raise UnknownNameError("family", printable(str(name)), names, hint=hint) from None
    if way == "width":
        reason = f"`--by width` follows sizes that were published; `{model.name}` is no family of such"
        raise InputError(reason, hint=f"families: {', '.join(LADDERS)}; or --by depth")
    return Family(name=model.name, base=model, by=way)
