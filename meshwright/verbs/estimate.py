"""`estimate`: price one given layout, part by part."""

from __future__ import annotations

from dataclasses import MISSING, replace
from typing import TYPE_CHECKING

from cost_models.flags import as_keywords, flag, given_flags
from meshwright.inputs.options import Amount, Request, TrainingInput
from meshwright.inputs.problems import require_given
from meshwright.verbs.contract import command, require_options, verbs_of_model

if TYPE_CHECKING:
    from meshwright.terminal.output import Output
    from meshwright.verbs.contract import PlanAnswer, PlanningQuestion


class EstimateOptions(Amount, Request):
    """Options of `estimate`: a question, and the layout to price (a sharding for recommenders)."""

    training: TrainingInput = flag("FILE", panel="job")
    """Training YAML; flags override it."""
    layout: str = flag("", default="", command_default=MISSING, panel="subject")
    """E.g. "tp8 pp3 dp16 mbs1 zero1"; what "tp8" leaves out is searched."""

    measured: str | float | None = flag("STEP", default=None, panel="job")
    """Step that you measured: 21.4s, '38% MFU' or the job's log."""

    def question(self) -> PlanningQuestion:
        """Read the question. Raises InputError listing all problems."""
        from cost_models.files.loading import read_once

        options = replace(self, model=read_once(self.model))
        verbs = verbs_of_model(options.model)
        require_given({"layout": options.layout}, "no layout to price", "for example layout='tp8 pp4'")
        require_options(verbs, "estimate", given_flags(options))
        return verbs.ask_estimate(options)


@as_keywords(EstimateOptions)
def estimate(options: EstimateOptions) -> PlanAnswer:
    """Price one layout, given as text such as "tp8 pp3 dp16".

    The question is given as for `plan`. `trainer` names the trainer whose rules the layout must obey (`--for`),
    `confidence` is the minimum probability of fitting in memory, and `host_memory` replaces the memory of each host.

    `tokens`, or `samples` and `epochs`, add the duration of the whole training job, `price` its cost.

    Axes that the layout of a transformer leaves out are chosen by a search; the answer is an `Estimated`. For a
    recommender the layout is a sharding, and the answer a `ShardingEstimated`.

    Raises:
        InputError: what was asked is wrong, or the layout cannot run.
    """
    return options.question().answer()


@command(EstimateOptions, out="Write it as a plan.")
def estimate_command(options: EstimateOptions, output: Output) -> None:
    """Price one layout, part by part."""
    question = output.read(options.question)
    output.print_notes(question)
    output.finish(question.answer())
