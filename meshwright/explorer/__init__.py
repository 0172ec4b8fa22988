"""The explorer: the verb `explore` serves a local page whose controls change the question and plan anew."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from cost_models.errors import InputError, require_installed
from cost_models.flags import argument, flag, given_flags
from meshwright.inputs.options import TUNING, Failures, Limits, Request, tokens_flag
from meshwright.verbs.contract import command, option_word, require_verb, verbs_of_model

if TYPE_CHECKING:
    from meshwright.explorer.questions import Start
    from meshwright.terminal.output import Output

_PLANS = (".yaml", ".yml")
_EXAMPLE = {
    "model": "gpt3-175b",
    "cluster": "dgx-a100-80gb",
    "gpus": 1024,
    "global_batch": "1536",
    "sequence": "2048",
}
"""Question that the page opens with if none is given; published runs of it exist."""


class ExploreOptions(Limits, Failures, Request):
    """Options of `explore`: a plan file or a question, restrictions, tokens to train on, and the port."""

    model: str = field(default="", metadata=argument("[PLAN|MODEL]", completion="models"))
    """Plan file; or catalogue name, config.json or YAML."""
    cluster: str = field(default="", metadata=argument("[CLUSTER]", completion="clusters"))
    """Catalogue name or YAML file."""
    tokens: str | float | None = tokens_flag()
    port: int | None = flag("N", minimum=1, maximum=65535)
    """Port; default 8642, or the next free one."""


_HIDDEN = (
    *("dropout", "optimizer", "optimizer_in_backward", "state_dtype", *TUNING),
    *("together", "max_memory", "confidence", "host_memory"),
)


@command(ExploreOptions, shows=("quiet",), hides=_HIDDEN)
def explore_command(options: ExploreOptions, output: Output) -> None:
    """Serve a page on this machine whose controls ask again."""
    require_installed("`explore`", starlette="starlette>=0.40", uvicorn="uvicorn>=0.30")
    from meshwright.explorer.server import HOST, listening, serve
    from meshwright.terminal.output import say

    if not options.model and not options.cluster:
        defaults = {name: value for name, value in _EXAMPLE.items() if not getattr(options, name)}
        options = replace(options, **defaults)  # type: ignore[arg-type]
    start = _start(options)
    listener = listening(options.port)
    address = f"http://{HOST}:{listener.getsockname()[1]}"
    serve(start, listener, ready=lambda: say(f"Explore at {address} (Ctrl-C ends it)"))
    output.note("ended")


def _start(options: ExploreOptions) -> Start:
    """Question that the page opens with: that of a plan file, or of a model on a cluster. Raises InputError."""
    from cost_models.files.loading import known_name
    from meshwright.explorer.questions import start_of, start_of_plan
    from meshwright.inputs.plans import plan_of
    from meshwright.render.words import sentence_list

    name = options.model
    if options.cluster or known_name(name, "models") or not name.endswith(_PLANS):
        require_verb(verbs_of_model(name), "explore")
        return start_of(options)
    if words := [option_word(one) for one in given_flags(options) if one not in ("tokens", "operations")]:
        hint = f"leave out {sentence_list(words)}, or turn it on the page"
        raise InputError("a plan file says what is asked", hint=hint)
    return start_of_plan(plan_of(name), tokens=options.tokens, operations=options.operations)
