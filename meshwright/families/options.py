"""Refuses options, and whole verbs, that mean nothing to a family of models."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from cost_models.errors import InputError
from meshwright.families.verbs import Verbs
from meshwright.render.words import sentence_list

_WORDS = {"model": "MODEL", "cluster": "CLUSTER", "clusters": "CLUSTER,CLUSTER", "trainer": "--for"}
"""Name of an option → how it is written, where that is not `--name`."""


def option_word(name: str) -> str:
    """ "max_memory" → "--max-memory"."""
    return _WORDS.get(name, "--" + name.replace("_", "-"))


def require_verb(verbs: Verbs[Any], verb: str) -> None:
    """Raise InputError where a verb is not for this family."""
    if verb not in verbs.takes:
        raise InputError(
            f"`meshwright {verb}` does not take {verbs.noun}",
            hint=f"there are {', '.join(sorted(verbs.takes))}",
        )


def require_options(verbs: Verbs[Any], verb: str, given: Collection[str]) -> None:
    """Raise InputError where a verb, or an option that was given to it, means nothing to the family."""
    require_verb(verbs, verb)
    known = verbs.takes[verb] | {"model", "cluster"}
    if strangers := [option_word(name) for name in given if name not in known]:
        does = "do" if len(strangers) > 1 else "does"
        raise InputError(
            f"{sentence_list(strangers)} {does} not go with {verbs.noun}",
            hint=f"meshwright {verb} takes {', '.join(sorted(map(option_word, verbs.takes[verb])))}",
        )
