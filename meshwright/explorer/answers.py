"""Answers of the explorer: sections of its page, quickest first, and the process that computes them.

The process answers one question at a time; when nobody waits for the answer any more it is ended and replaced.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import traceback
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from cost_models.errors import (
    DoesNotFitError,
    InfeasibleError,
    InputError,
    MeshwrightError,
    RunError,
    first_few,
)
from cost_models.units import format_bytes, format_seconds
from executor.launch.environment import imports_of_workers
from meshwright.explorer.questions import CONTROLS, ControlledQuestion, Start, read_controls
from meshwright.families.transformer import TransformerVerbs
from meshwright.families.transformer.pictures import reasons
from meshwright.families.transformer.plan import facts_of_file
from meshwright.families.transformer.question import TOP, PlanQuestion
from meshwright.inputs.goals import confident
from meshwright.pages.chapters import Block, Chapter, Listing, Picture
from meshwright.pages.html import section
from meshwright.plots.drawing import Drawing
from meshwright.plots.frontiers import frontier
from meshwright.plots.pictures import MAX_NAMED_LAYOUTS, draw_plan, subject_of
from meshwright.render.estimates import mfu_words
from meshwright.render.goals import gpus_in_words
from meshwright.render.ranked import question_header
from meshwright.render.words import lines_of_any_length, unbroken
from meshwright.verbs.forecast import ForecastOptions
from meshwright.verbs.forecast.forecasted import ask as ask_forecast
from meshwright.verbs.report import USUAL_NAME
from planner.answers.frontier import frontier_frame
from planner.answers.optimum import answered_question
from planner.objectives import Objective
from planner.plan import Plan, plan_text, priced_again
from planner.search.search import Budget

SEARCH_SECONDS = 20.0
"""Time limit in seconds for the searches of one answer; then the best layout so far is shown with its gap."""
_LARGEST_DRAWING = 600_000
"""Largest number of bytes of a picture as SVG; higher than for report files, since this page is only shown
locally."""

Message = Mapping[str, Any]
"""Message to the page: `slot` and `html` of a part, or `shown`, `problems`, `title` and `brief`."""


def error_messages(error: MeshwrightError) -> Iterator[Message]:
    """Messages that show an error on the page, its problems below the controls that caused them."""
    problems = {problem.where.removeprefix("--"): problem.what for problem in error.problems}
    yield {"problems": {name: what for name, what in problems.items() if name in CONTROLS}}
    lines = [error.headline, *(f"  {problem}" for problem in first_few(error.problems))]
    if isinstance(error, DoesNotFitError) and error.would_fit:
        lines += ["Would fit:", *(f"  {one}" for one in error.would_fit)]
    if error.hint:
        lines.append(f"Hint: {error.hint}")
    title = "This cannot be asked" if isinstance(error, InputError) else "No answer"
    title = "This has no answer" if isinstance(error, InfeasibleError) else title
    yield _part("error", title, "\n".join(lines))


def answer(start: Start, values: Mapping[str, str]) -> Iterator[Message]:
    """Messages of an answer: the plan with its proof, timeline and memory first, then sections that take longer to
    compute."""
    with lines_of_any_length():
        try:
            yield from _answer(start, values)
        except MeshwrightError as error:
            yield from error_messages(error)


def _answer(start: Start, values: Mapping[str, str]) -> Iterator[Message]:
    """Messages with the sections of an answer: on the plan of the plan file if the controls ask the same, else on a
    new plan.

    Raises:
        InputError: controls that cannot be read.
        InfeasibleError: nothing fits.
        RunError: time ran out before anything was found.
    """
    request = read_controls(start, values)
    yield {"shown": request.control_values}
    budget = Budget(time_limit=SEARCH_SECONDS)
    limits = confident(request.restrictions, request.question)
    question = PlanQuestion(question=request.question, objective=Objective(), restrictions=limits)
    planned, plan, facts = question.answer(budget, TOP), start.plan, None
    if plan is None or (question.question, limits) != (answered_question(plan), plan.user_restrictions):
        plan, facts = planned.plan, planned.facts
    best = priced_again(plan)
    peak = f"{format_bytes(best.peak_bytes)} of {best.limit_words}"
    brief = f"{format_seconds(best.step_seconds)} a step, {mfu_words(best)}, {peak}"
    yield {"title": f"{plan.model.name} on {gpus_in_words(plan.question)}", "brief": unbroken(brief)}
    header = question_header(plan.question, best.trust)
    facts = tuple(facts_of_file(plan, best)) if facts is None else facts
    yield _part("answer", "The answer", facts, header, *request.notes, *planned.notes)
    yield _part("ranking", "Ranked on paper", *planned.ranking)
    yield _part("step", "One step", _picture(draw_plan("timeline", plan, [best]), "timeline"))
    yield _part("memory", "Memory", _picture(draw_plan("memory", plan, [best]), "memory"))
    yield _part("plan", "The plan itself", Listing(text=plan_text(plan)))
    frame = frontier_frame(request.question, best, limits, budget, max_named=MAX_NAMED_LAYOUTS)
    cloud = Drawing.of(frontier, frame, best.memory_limit, subject_of(request.question))
    yield _part("layouts", "All layouts", _picture(cloud, "frontier"))
    if request.tokens is not None:
        try:
            yield _end(plan, request)
        except MeshwrightError as error:
            yield from error_messages(error)
    for slot, chapter in zip(
        ("why", "changes"), reasons(plan, TransformerVerbs().explain(plan)), strict=False
    ):
        yield _message(slot, chapter)


def _end(plan: Plan, request: ControlledQuestion) -> Message:
    """Message with the section on the day training ends."""
    options = ForecastOptions(plan=plan, tokens=request.tokens, **vars(request.operations))
    return _message("ends", ask_forecast(options).chapter(USUAL_NAME))


def _picture(drawing: Drawing, kind: str) -> Picture:
    """Drawing for the page, with the command that draws it again."""
    return Picture(drawing=drawing, command=f"meshwright plot {kind} {USUAL_NAME}")


def _part(slot: str, title: str, *blocks: Block) -> Message:
    """Message with a chapter, made of its title and blocks, for the place `slot` of the page."""
    return _message(slot, Chapter(title=title, blocks=blocks))


def _message(slot: str, chapter: Chapter) -> Message:
    """Message with a chapter as HTML for the place `slot` of the page."""
    return {"slot": slot, "html": section(chapter, largest_drawing=_LARGEST_DRAWING)}


_PRELOADED = (
    "meshwright.explorer.answers",
    "matplotlib.backends.backend_svg",
    "meshwright.plots.frontiers",
    "meshwright.plots.timelines",
)
"""Modules imported once by the fork server, so that new worker processes start quickly."""


class Worker:
    """Process that computes the explorer's answers, and the pipe to it."""

    def __init__(self, start: Start) -> None:
        """Start the process that answers questions of a page which began with `start`."""
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self._context, self._start = multiprocessing.get_context(method), start
        if method == "forkserver":
            self._context.set_forkserver_preload([*_PRELOADED])
        self._free = asyncio.Lock()
        self._is_closed = False
        self._begin()

    async def ask(self, values: Mapping[str, str]) -> AsyncGenerator[Message, None]:
        """Messages of an answer as they are computed; closing the generator restarts the process.

        Raises:
            RunError: the process has ended.
        """
        async with self._free:
            is_finished = False
            try:
                self._pipe.send(dict(values))
                while (message := await asyncio.to_thread(self._pipe.recv)) is not None:
                    yield message
                is_finished = True
            except (EOFError, OSError):
                hint = "a smaller question may need less memory"
                raise RunError("the process that searched has ended", hint=hint) from None
            finally:
                if not is_finished and not self._is_closed:
                    self._end()
                    self._begin()

    def close(self) -> None:
        """Kill the worker process, and with it the answer it computes."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        """Kill the worker process and wait for its end."""
        self.process.kill()
        self.process.join()

    def _begin(self) -> None:
        """Start a worker process with a new pipe."""
        self._pipe, child_pipe = self._context.Pipe()
        self.process = self._context.Process(target=_serve, args=(child_pipe, self._start), daemon=True)  # type: ignore[attr-defined]
        with imports_of_workers():
            self.process.start()
        child_pipe.close()


def _serve(pipe: Connection, start: Start) -> None:
    """Main loop of the worker process: answer questions until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends it
    with suppress(EOFError, OSError):
        while True:
            values = pipe.recv()
            try:
                for message in answer(start, values):
                    pipe.send(message)
            except (EOFError, OSError):
                raise
            except Exception as error:  # a defect of ours is said in the page too, and ends no process
                traceback.print_exc()
                for message in error_messages(RunError(f"this is a defect: {type(error).__name__}")):
                    pipe.send(message)
            pipe.send(None)
