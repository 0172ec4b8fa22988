"""Commands that start another trainer than Megatron-LM: whose they are, and what to import in their place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from planner.formats.reading.shell_words import plain

_TORCHTITAN = re.compile(r"torchtitan\.(?:\w+\.)*train|.*torchtitan/train\.py|.*run_train\.sh")
_NEMO = re.compile(r".*megatron_gpt_pretraining\.py")
_DEEPSPEED = re.compile(r"(?:.*/)?deepspeed|--deepspeed(?:_config)?(?:=.*)?")


def import_instead(words: Sequence[str]) -> tuple[str, str] | None:
    """The trainer that a command starts, and the import that reads it; None: none that has one."""
    for program, name, tell in (
        (_TORCHTITAN, "torchtitan", _torchtitan),
        (_NEMO, "NeMo", _nemo),
        (_DEEPSPEED, "DeepSpeed", _deepspeed),
    ):
        places = [at for at, word in enumerate(words) if program.fullmatch(plain(word))]
        if places:
            return name, tell(words, places[-1])
    return None


def _written(file: str, model: str, rest: Sequence[str], gpus: bool = True) -> str:
    words = " ".join(map(plain, rest))
    also = f' --also "{words}"' if words else ""
    return f"meshwright import {file} {model}CLUSTER{' --gpus N' if gpus else ''}{also}"


def _take(words: Sequence[str], *flags: str) -> tuple[str | None, list[str]]:
    """The value of the first of some flags, and the words without it."""
    left = list(words)
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            if not equals and at + 1 < len(words):
                return words[at + 1], left[:at] + left[at + 2 :]
            return value, left[:at] + left[at + 1 :]
    return None, left


def _torchtitan(words: Sequence[str], at: int) -> str:
    file, rest = _take(words[at + 1 :], "--job.config_file", "--job.config-file")
    module, rest = _take(rest, "--module")
    if file is None:
        file = f"{module}/config_registry.py" if module is not None else "recipe.py"
    return _written(plain(file), "", rest)


def _nemo(words: Sequence[str], at: int) -> str:
    folder, rest = _take(words[at + 1 :], "--config-path", "-cp")
    name, rest = _take(rest, "--config-name", "-cn")
    stem = str(name or "gpt").removesuffix(".yaml")
    return _written(plain(str(PurePosixPath(folder or ".") / f"{stem}.yaml")), "", rest, gpus=False)


def _deepspeed(words: Sequence[str], at: int) -> str:
    file, _ = _take(words, "--deepspeed_config", "--deepspeed")
    named = file if file is not None and file.endswith(".json") else "ds.json"
    return f"{_written(plain(named), 'MODEL ', ())} --sequence S"
