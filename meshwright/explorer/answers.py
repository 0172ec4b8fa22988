"""Answers of the explorer: parts of its page, the quickest first, and the processes that compute them.

A process answers one question at a time; when nobody waits for the answer any more it is ended and replaced.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import traceback
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

from cost_models.errors import (
    DoesNotFitError,
    InfeasibleError,
    InputError,
    MeshwrightError,
    RunError,
    first_few,
)
from cost_models.estimate import Estimate
from cost_models.units import format_bytes, format_seconds
from executor.launch.environment import imports_of_workers
from meshwright.explorer.questions import CONTROLS, Sought, Start, sought
from meshwright.families.transformer.explain import explain
from meshwright.families.transformer.pictures import reasons
from meshwright.families.transformer.planned import Planned, facts_of_file
from meshwright.families.transformer.question import TOP, PlanQuestion
from meshwright.inputs.goals import Pick, confident
from meshwright.pages.chapters import Block, Chapter, Listing, Picture
from meshwright.pages.html import section
from meshwright.plots.drawing import Drawing
from meshwright.plots.pictures import draw_cloud, draw_plan
from meshwright.render.estimates import mfu_words
from meshwright.render.goals import gpus_in_words
from meshwright.render.ranked import question_header
from meshwright.render.words import lines_of_any_length, with_units_kept
from meshwright.verbs.forecast import ForecastOptions
from meshwright.verbs.forecast.forecasted import ask as ask_forecast
from meshwright.verbs.report.writing import USUAL_NAME
from planner.answers.optimum import answered_question
from planner.objectives import Objective
from planner.plan import Plan, plan_text, priced_again
from planner.search.search import Budget

SEARCH_SECONDS = 20.0
"""Time limit of the searches of one answer; the incumbent is then shown with its gap."""
_LARGEST_DRAWING = 600_000
"""Bytes of an SVG: nothing is sent by mail here."""

Message = Mapping[str, Any]
"""Message to the page: `slot` and `html` of a part, or `shown`, `problems`, `title` and `brief`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Question of the controls with its plans."""

    found: Sought
    planned: Planned
    plan: Plan
    """Plan of the file while its question is unchanged, else the planned one."""
    budget: Budget

    @property
    def estimate(self) -> Estimate:
        """The price of the plan."""
        return priced_again(self.plan)


def answer(start: Start, values: Mapping[str, str]) -> Iterator[Message]:
    """The plan with its proof, its timeline and its memory; then what takes longer."""
    with lines_of_any_length():
        yield from _told(lambda: _answer(start, values))


def frontier(start: Start, values: Mapping[str, str]) -> Iterator[Message]:
    """All layouts, with those that are the best for their memory; nothing where there is no plan, as `answer` says."""
    try:
        asked = _asked(start, values, top=1, pick="fastest")
    except MeshwrightError:
        return
    limits = asked.planned.restrictions
    drawing = draw_cloud(asked.found.question, asked.estimate, limits, asked.budget, exact=False)
    yield _part("layouts", "All layouts", _picture(drawing, "frontier"))


STREAMS: Mapping[str, Callable[[Start, Mapping[str, str]], Iterator[Message]]] = {
    "answer": answer,
    "frontier": frontier,
}
"""Streams of one question, each computed by its own process."""


def told_error(error: MeshwrightError) -> Iterator[Message]:
    """Why there is no answer, under the controls that are at fault where some are."""
    problems = {problem.where.removeprefix("--"): problem.what for problem in error.problems}
    yield {"problems": {name: what for name, what in problems.items() if name in CONTROLS}}
    lines = [error.headline, *(f"  {problem}" for problem in first_few(error.problems))]
    if isinstance(error, DoesNotFitError) and error.would_fit:
        lines += ["Would fit:", *(f"  {one}" for one in error.would_fit)]
    if error.hint:
        lines.append(f"Hint: {error.hint}")
    title = "This has no answer" if isinstance(error, InfeasibleError) else "This cannot be asked"
    if not isinstance(error, (InfeasibleError, InputError)):
        title = "No answer"
    yield _part("error", title, "\n".join(lines))


def _told(parts: Callable[[], Iterator[Message]]) -> Iterator[Message]:
    try:
        yield from parts()
    except MeshwrightError as error:
        yield from told_error(error)


def _asked(start: Start, values: Mapping[str, str], *, top: int, pick: Pick = "recommended") -> _Asked:
    """The question's best layouts.

    Raises:
        InputError: controls that cannot be read.
        InfeasibleError: nothing fits.
        RunError: time ran out before anything was found.
    """
    request = sought(start, values)
    budget = Budget(time_limit=SEARCH_SECONDS)
    question = PlanQuestion(
        question=request.question,
        objective=Objective(),
        restrictions=confident(request.restrictions, request.question),
        pick=pick,
    )
    planned, file_plan = question.answer(budget, top), start.plan
    is_file_question = file_plan is not None and (question.question, question.restrictions) == (
        answered_question(file_plan),
        file_plan.user_restrictions,
    )
    plan = file_plan if file_plan is not None and is_file_question else planned.plan
    return _Asked(found=request, planned=planned, plan=plan, budget=budget)


def _answer(start: Start, values: Mapping[str, str]) -> Iterator[Message]:
    yield {"shown": sought(start, values).shown}
    answered = _asked(start, values, top=TOP)
    planned, request = answered.planned, answered.found
    plan, best = answered.plan, answered.estimate
    peak = f"{format_bytes(best.peak_bytes)} of {best.limit_words}"
    brief = f"{format_seconds(best.step_seconds)} a step, {mfu_words(best)}, {peak}"
    yield {"title": f"{plan.model.name} on {gpus_in_words(plan.question)}", "brief": with_units_kept(brief)}
    header = question_header(plan.question, best.trust)
    facts = planned.facts if plan is not start.plan else tuple(facts_of_file(plan, best))
    yield _part("answer", "The answer", facts, header, *request.notes, *planned.notes)
    yield _part("ranking", "Ranked on paper", *planned.ranking)
    yield _part("step", "One step", _picture(draw_plan("timeline", plan, [best]), "timeline"))
    yield _part("memory", "Memory", _picture(draw_plan("memory", plan, [best]), "memory"))
    if request.tokens is not None:
        yield from _told(lambda: _end(answered))
    for slot, chapter in zip(("why", "changes"), reasons(plan, explain(plan)), strict=False):
        yield {"slot": slot, "html": section(chapter, largest_drawing=_LARGEST_DRAWING)}
    yield _part("plan", "The plan itself", Listing(text=plan_text(plan)))


def _end(answered: _Asked) -> Iterator[Message]:
    """The day training ends."""
    forecast = ask_forecast(
        ForecastOptions(plan=answered.plan, tokens=answered.found.tokens, **vars(answered.found.operations))
    ).answer()
    assumed = [f"Assumed: {one}." for one in forecast.assumptions]
    yield _part("ends", "When it ends", *forecast.text, *assumed, _picture(forecast.plot(), "forecast"))


def _picture(drawing: Drawing, kind: str) -> Picture:
    return Picture(drawing=drawing, command=f"meshwright plot {kind} {USUAL_NAME}")


def _part(slot: str, title: str, *blocks: Block) -> Message:
    chapter = Chapter(title=title, blocks=blocks)
    return {"slot": slot, "html": section(chapter, largest_drawing=_LARGEST_DRAWING)}


_ANSWERS = "meshwright.explorer.answers"
_PICTURES = ("matplotlib.backends.backend_svg", "meshwright.plots.frontiers", "meshwright.plots.layouts")


class Workers:
    """Pool of processes; each question takes the first free one."""

    def __init__(self, start: Start, number: int) -> None:
        context = _context()
        self.all = [_Worker(context, start) for _ in range(number)]
        self._closed = False
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()
        for one in self.all:
            self._free.put_nowait(one)

    async def ask(self, stream: str, values: Mapping[str, str]) -> AsyncGenerator[Message, None]:
        """Messages of one stream as they are computed; closing the generator ends the work.

        Raises:
            RunError: the process has ended.
        """
        worker = await self._free.get()
        is_finished = False
        try:
            async for message in worker.ask(stream, values):
                yield message
            is_finished = True
        finally:
            if not is_finished and not self._closed:
                worker.replace()
            self._free.put_nowait(worker)

    def close(self) -> None:
        """End all processes and their answers."""
        self._closed = True
        for one in self.all:
            one.close()


class _Worker:
    """A process, and the pipe to it."""

    def __init__(self, context: BaseContext, start: Start) -> None:
        self._context, self._start = context, start
        self._begin()

    async def ask(self, stream: str, values: Mapping[str, str]) -> AsyncGenerator[Message, None]:
        try:
            self._pipe.send((stream, dict(values)))
            while (message := await asyncio.to_thread(self._pipe.recv)) is not None:
                yield message
        except (EOFError, OSError):
            raise RunError(
                "the process that searched has ended", hint="a smaller question may need less memory"
            ) from None

    @property
    def pid(self) -> int | None:
        """Process id."""
        pid: int | None = self._process.pid
        return pid

    def replace(self) -> None:
        """Kill the process and start a new one."""
        self.close()
        self._begin()

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    def _begin(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs, self._start), daemon=True)  # type: ignore[attr-defined]
        with imports_of_workers():
            self._process.start()
        theirs.close()


def _serve(pipe: Connection, start: Start) -> None:
    """Loop of a process: answer questions until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends it
    with suppress(EOFError, OSError):
        while True:
            stream, values = pipe.recv()
            try:
                for message in STREAMS[stream](start, values):
                    pipe.send(message)
            except (EOFError, OSError):
                raise
            except Exception as error:  # a defect of ours is said in the page too, and ends no process
                traceback.print_exc()
                for message in told_error(RunError(f"this is a defect: {type(error).__name__}")):
                    pipe.send(message)
            pipe.send(None)


def _context() -> BaseContext:
    """How processes begin: as forks of one that has imported everything, where the system has that."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_ANSWERS, *_PICTURES])
    return context
