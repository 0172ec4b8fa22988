"""`meshwright explore`: a page on this machine whose controls ask again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output
from meshwright.cli.printing import say

if TYPE_CHECKING:
    from meshwright.explorer.starting import Start
    from meshwright.inputs.limits import Limits
    from meshwright.inputs.questions import Inputs

_PLANS = (".yaml", ".yml")
_SHOWN = ("gpt3-175b", "dgx-a100-80gb", 1024, "1536", "2048")
"""What is asked where nothing is said: a question that published runs answer."""


def explore(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[PLAN|MODEL]",
            help="Plan file; or catalogue name, config.json or YAML.",
            autocompletion=completion.models,
        ),
    ] = "",
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="[CLUSTER]", help="Catalogue name or YAML file.", autocompletion=completion.clusters
        ),
    ] = "",
    gpus: o.Gpus = None,
    global_batch: o.GlobalBatch = None,
    sequence: o.Sequence = None,
    precision: o.Precision = None,
    training: o.Training = None,
    stack: o.Stack = None,
    profile: o.Profile = None,
    fix: o.Fix = None,
    forbid: o.Forbid = None,
    allow: o.Allow = None,
    trainer: o.For = None,
    tokens: o.Tokens = None,
    operations: o.Operations = None,
    port: Annotated[
        int | None, o.optional("--port", "N", "Default 8642, or the next free one.", min=1, max=65535)
    ] = None,
    quiet: o.Quiet = False,
) -> None:
    """Serve a page on this machine whose controls ask again."""
    from meshwright.explorer.serving import HOST, listening, require_server, serve
    from meshwright.inputs.limits import Limits
    from meshwright.inputs.questions import Inputs

    require_server()
    nothing = not model and not cluster
    usual = _SHOWN if nothing else (model, cluster, None, None, None)
    inputs = Inputs(
        model=usual[0],
        cluster=usual[1],
        gpus=gpus or usual[2],
        global_batch=global_batch or usual[3],
        sequence=sequence or usual[4],
        precision=precision,
        training=training,
        stack=stack,
        profile=profile,
        trainer=trainer,
    )
    limits = Limits(fix=tuple(fix or ()), forbid=tuple(forbid or ()), allow=tuple(allow or ()))
    start = _start(inputs, limits, tokens, operations)
    listener = listening(port)
    address = f"http://{HOST}:{listener.getsockname()[1]}"
    serve(start, listener, ready=lambda: say(f"Explore at {address} (Ctrl-C ends it)"))
    Output(quiet=quiet).note("ended")


def _start(inputs: Inputs, limits: Limits, tokens: str | None, operations: str | None) -> Start:
    """The question of the page: that of a plan file, or of a model on a cluster. Raises InputError."""
    from cost_models.errors import InputError
    from cost_models.files.names import known_model
    from meshwright.explorer.starting import start_of, start_of_plan
    from meshwright.families import verbs_of_model
    from meshwright.families.options import option_word, require_verb
    from meshwright.inputs.plan_inputs import given
    from meshwright.inputs.plans import plan_of
    from meshwright.render.words import sentence_list

    name = str(inputs.model)
    if inputs.cluster or known_model(name) or not name.endswith(_PLANS):
        require_verb(verbs_of_model(name), "explore")
        return start_of(inputs, limits, tokens=tokens, operations=operations)
    words = [option_word(one) for one in (*given(inputs), *given(limits)) if one != "model"]
    if words:
        raise InputError(
            "a plan file says what is asked", hint=f"leave out {sentence_list(words)}, or turn it on the page"
        )
    return start_of_plan(plan_of(name), tokens=tokens, operations=operations)
