"""A recipe of torchtitan as settings by path: a function of a config registry, or a job file in TOML; never executed.

Sources: torchtitan 0.3.0 and its main branch of August 2026: torchtitan/config/configs.py, trainer.py,
models/llama3/config_registry.py; 0.1 and 0.2: torchtitan/config/job_config.py, config_manager.py.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError
from planner.formats.reading.python_values import Built, Module, Unknown, built_by, module_of
from planner.formats.reading.settings import by_path, renamed, said_beside
from planner.formats.table import table_of

_FAMILIES = ("llama3", "llama4", "qwen3", "deepseek_v3")
_FLAT = ("Config", "default_adamw")
"""Ends of the names of calls whose arguments are settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe: its settings and its model."""

    settings: Mapping[str, Any]
    family: str
    """Module of `torchtitan.models`."""
    flavour: str
    attention: str | None
    """Attention kernel of its model, or None where the file leaves it open."""
    converters: tuple[str, ...] = ()
    """Names of converters, which replace modules of the model."""
    by_operator: bool = True
    """Default of selective recompute: single operators, or in job files of earlier releases every other block."""


def read_recipe(text: str, name: str, also: str = "") -> Recipe:
    """The recipe of a file's text; `also` are arguments as torchtitan's command takes them.

    Raises:
        InputError: it is no recipe, or says a setting twice.
    """
    arguments = said_beside(also)
    if PurePath(name).suffix == ".toml":
        return _of_job_file(text, arguments)
    return _of_registry(text, name, arguments)


def _of_job_file(text: str, arguments: dict[str, Any]) -> Recipe:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"no TOML: {str(error)[:200]}") from None
    said = dict(by_path(document))
    settings = _today(said) | _today(arguments)
    converters = settings.pop("model.converters", ())
    names = converters.split(",") if isinstance(converters, str) else converters
    if settings.get("float8.enable_float8_linear") or settings.get("training.enable_fp8_linear"):
        names = [*names, "float8"]
    family, flavour = settings.pop("model.name", None), settings.pop("model.flavor", None)
    if not isinstance(family, str) or not isinstance(flavour, str):
        raise InputError("no recipe of torchtitan: it lacks `[model]` with `name` and `flavor`")
    return Recipe(
        settings=settings,
        family=family,
        flavour=flavour,
        attention=_kernel(settings.pop("model.attn_type", None)),
        converters=tuple(str(one).strip() for one in names if str(one).strip()),
        by_operator=False,
    )


def _today(said: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the paths of today. Raises InputError where two releases' words contradict one another."""
    return renamed(said.items(), table_of("torchtitan"))


def _of_registry(text: str, name: str, arguments: dict[str, Any]) -> Recipe:
    module = module_of(text)
    function, config = _recipe_function(module, arguments.pop("config", None))
    arguments.pop("module", None)
    spec = config.fields.pop("model_spec", None)
    if not isinstance(spec, Built) or not spec.name.endswith("model_registry"):
        raise InputError(
            f"`{function}` does not say its model by `model_registry(..)`: "
            f"`{printable(spec.name if isinstance(spec, Built) else str(spec))}`"
        )
    given = [*spec.arguments, spec.fields.get("flavor")]
    if not isinstance(given[0], str):
        raise InputError(f"`{function}` does not say the flavor of its model: `{printable(str(given[0]))}`")
    converters = [
        *_converters(spec.fields.get("converters")),
        *_converters(config.fields.pop("model_converters", ())),
    ]
    return Recipe(
        settings=_today(dict(_flat(config))) | _today(arguments),
        family=_family(module.sources.get(spec.name.split(".")[0], ""), name, function),
        flavour=given[0],
        attention=_kernel(spec.fields.get("attn_backend")),
        converters=tuple(converters),
    )


def _recipe_function(module: Module, wanted: Any) -> tuple[str, Built]:
    """The function that `--config` names, or the only one that builds a `Trainer.Config`."""
    known = [
        name
        for name, node in module.functions.items()
        if not node.args.args and any(isinstance(one, ast.Return) for one in ast.walk(node))
    ]
    if wanted is not None:
        if wanted not in module.functions:
            raise InputError(
                f"`{printable(str(wanted))}` is no function of the file", hint=f"it has {', '.join(known)}"
            )
        known = [wanted]
    recipes = {
        name: built
        for name in known
        if isinstance(built := built_by(module, name), Built)
        and ("model_spec" in built.fields or built.name.endswith("Trainer.Config"))
    }
    if not recipes:
        hint = "a recipe is a function that returns a `Trainer.Config`"
        raise InputError("the file has no recipe of torchtitan", hint=hint)
    if len(recipes) > 1:
        listed = ", ".join(f"`{name}`" for name in recipes)
        raise InputError(
            f"the file has {len(recipes)} recipes", hint=f'--also "--config NAME" takes one: {listed}'
        )
    return next(iter(recipes.items()))


def _flat(built: Built, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in built.fields.items():
        path = f"{before}{name}"
        if path == "activation_checkpoint":
            yield path, value.name.rpartition(".")[0] or value.name if isinstance(value, Built) else value
        if isinstance(value, Built) and value.name and not value.name.endswith(_FLAT):
            yield path, Unknown(f"{value.name}(..)")
        elif isinstance(value, Built):
            yield from _flat(value, f"{path}.")
        elif path != "activation_checkpoint":
            yield path, value


def _converters(said: Any) -> Iterator[str]:
    """Names of what a list of converters holds, or a container of one."""
    if isinstance(said, Built):
        yield from _converters(said.fields.get("converters", ()))
    elif isinstance(said, list | tuple):
        for one in said:
            yield one.name.removesuffix(".Config") if isinstance(one, Built) else str(one)
    elif isinstance(said, Unknown):
        yield str(said)


def _kernel(said: Any) -> str | None:
    return said if isinstance(said, str) else None


def _family(source: str, name: str, function: str) -> str:
    """By the module that `model_registry` comes from; in torchtitan's own files by their folder or the function."""
    places = [source.rpartition(".")[2], PurePath(name).parent.name]
    for place in places:
        if place in _FAMILIES:
            return place
    return next((one for one in _FAMILIES if function.startswith(one)), places[0])
