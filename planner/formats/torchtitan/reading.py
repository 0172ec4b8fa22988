"""torchtitan: the run of a recipe on so many GPUs.

Sources: torchtitan 0.3.0 and its main branch of August 2026: torchtitan/config/configs.py, trainer.py,
distributed/parallel_dims.py, distributed/pipeline_parallel.py; 0.1 and 0.2: torchtitan/config/job_config.py.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from cost_models.axes.layout import Layout
from cost_models.documents import spec_error
from cost_models.errors import InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats.reading.python_values import Built, Unknown
from planner.formats.reading.settings import Reading, Settings
from planner.formats.table import table_of
from planner.formats.torchtitan.flavours import Flavour, flavours, model_of
from planner.formats.torchtitan.layout import layout_of, sequence_length
from planner.formats.torchtitan.recipes import Recipe

STACK = "torchtitan"
_HIDES_INSIDE = "megatron-core"
"""Software stack whose tensor-parallel overlap is taken for torchtitan's."""


def read_torchtitan(
    recipe: Recipe, *, gpus: int | None, stack: str | None = None, model: TransformerSpec | None = None
) -> Reading:
    """The run of a recipe on so many GPUs; a model that is named stands for a flavor that is not known here.

    Raises:
        InputError: the recipe contradicts itself or the number of GPUs, or says what only Python knows.
    """
    if gpus is None:
        raise InputError("the recipe does not say on how many GPUs it runs", hint="--gpus says it")
    assumed: list[str] = []
    shape = _model(recipe, model, assumed)
    said = _settings(recipe, assumed)
    base = load_stack(stack or STACK)
    layout, local = layout_of(said, recipe, shape, gpus, assumed)
    training = _training(said, recipe, layout, local, assumed)
    own = base.model_copy(update=_facts(said, recipe, base, assumed))
    assumptions = (*said.unread(), *assumed)
    return Reading(model=shape, training=training, layout=layout, stack=own, assumptions=assumptions)


def _settings(recipe: Recipe, assumed: list[str]) -> Settings:
    """Raises InputError where only Python knows a setting, or a table of them, that a price is made of."""
    table, values, hidden = table_of("torchtitan"), dict(recipe.settings), []
    for path, value in recipe.settings.items():
        priced = path != "optimizer" and any(f"{name}.".startswith(f"{path}.") for name in table.arguments)
        if isinstance(value, Unknown) and priced and table.fate(path) is None:
            what = f"only Python knows what `{value}` is"
            if path in table.arguments and (why := table.arguments[path].why):
                assumed.append(f"no effect of `{path}`: {what}, and {why}")
                del values[path]
            else:
                hidden.append(Problem(f"`{path}`", what))
    if hidden:
        path = hidden[0].where.strip("`")
        raise InputError(
            "the recipe computes settings", problems=hidden, hint=f'--also "--{path} VALUE" says it'
        )
    return Settings(values, table)


def _model(recipe: Recipe, named: TransformerSpec | None, assumed: list[str]) -> TransformerSpec:
    if named is not None:
        assumed.append(f"the model that is named, for `{recipe.flavour}` of {recipe.family}")
        return named
    if (known := model_of(Flavour(recipe.family, recipe.flavour))) is not None:
        return known
    listed = ", ".join(f"{one.family} {one.name}" for one in flavours())
    raise InputError(
        f"`{recipe.flavour}` of {recipe.family or 'an unknown family'} is not known here",
        hint=f"name its model before the cluster; known are {listed}",
    )


def _training(said: Settings, recipe: Recipe, layout: Layout, local: int, assumed: list[str]) -> TrainingSpec:
    length, usual = sequence_length(said), local * layout.dp
    if (tokens := said.get("training.num_tokens_per_train_step")) != -1:
        batch = tokens // length if isinstance(tokens, int) else 0
    else:
        batch = said.get("training.global_batch_size")
        batch = usual if batch == -1 else batch
    if not isinstance(batch, int) or batch < 1 or batch % usual:
        raise InputError(
            f"a global batch of {batch} sequences contradicts {local} on each of dp{layout.dp}",
            hint="it is a multiple of their product",
        )
    if batch != usual and layout.pp > 1:
        assumed.append(f"one pipeline a step, where the recipe fills and drains it {batch // usual} times")
    steps = said.whole("training.steps")
    fields: dict[str, Any] = {
        "global_batch": batch,
        "sequence_length": length,
        "precision": _precision(said, recipe, assumed),
        "dropout": 0.0,
        **({"tokens": float(steps * batch * length)} if steps else {}),
        "state_dtype": said.ours("training.dtype"),
        "optimizer_in_backward": said.get("optimizer.early_step_in_backward"),
    }
    groups = [
        one.fields.get("optimizer_name", "?") if isinstance(one, Built) else "?"
        for one in said.listed("optimizer.param_groups") or ()
    ]
    for name in groups or [said.get("optimizer", said.get("optimizer.name"))]:
        if name not in ("Adam", "AdamW"):
            raise InputError(f"`optimizer: {name}` is not priced here", hint="Adam and AdamW are")
    try:
        return TrainingSpec.model_validate(fields)
    except ValidationError as error:
        raise spec_error(error, TrainingSpec) from None


def _precision(said: Settings, recipe: Recipe, assumed: list[str]) -> str:
    precision = str(said.ours("training.mixed_precision_param"))
    for name in recipe.converters:
        low = name.lower()
        if "float8" in low or "mxfp8" in low or low == "mx":
            precision = "fp8"
        elif "nvfp4" in low:
            precision = "fp4"
        else:
            raise InputError(f"`{name}` changes the model in a way that is not priced here")
        assumed.append(f"products of all blocks in {precision} (`{name}`)")
    return precision


def _facts(said: Settings, recipe: Recipe, base: StackSpec, assumed: list[str]) -> dict[str, Any]:
    """What the recipe switches in the software stack."""
    parts = said.listed("compile.components") or ["model", "loss"]
    enabled = bool(said.get("compile.enable"))
    facts: dict[str, Any] = {
        "compiled": enabled and "model" in parts,
        "compiles_loss": "loss" in parts,
        "deterministic": bool(said.get("debug.deterministic")),
    }
    if facts["compiled"]:
        facts |= base.when_compiled(loss="loss" in parts)
    if said.get("compile.enable_async_tensor_parallel"):
        facts["overlap_tensor_parallel"] = load_stack(_HIDES_INSIDE).overlap_tensor_parallel
        assumed.append("as much of tensor-parallel communication hidden inside products as in Megatron Core")
    if said.get("parallelism.disable_loss_parallel"):
        facts["loss_parallel"] = False
    if recipe.attention == "flex":
        assumed.append("FlexAttention is priced as FlashAttention")
    return facts
