"""The command that starts a training, in a script or a pasted line: its arguments, and the number of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from cost_models.errors import InputError, Problem
from planner.formats.foreign import refuse_foreign
from planner.formats.reading.shell import Command, Script, read_script
from planner.formats.reading.shell_commands import CALLS, SAYS
from planner.formats.reading.shell_words import is_known, plain

_PROGRAM = re.compile(r"(?:^|.*[/\ue001])?pretrain_\w+\.py$", re.DOTALL)
_SBATCH = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus"}
_SLURM = {
    **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "--nodes"),
    **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), "--ntasks"),
    **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), "--ntasks-per-node"),
    **dict.fromkeys(("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), "--gpus-per-node"),
    **dict.fromkeys(("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"), "--cpus-per-node"),
    **{
        f"SLURM_{name}": f"--{name.replace('_', '-').lower()}"
        for name in ("GPUS", "GPUS_PER_TASK", "CPUS_PER_TASK")
    },
}
"""Variable that Slurm sets → the option of `sbatch` that fixes it."""
_NODES = ("--nnodes", "--nodes", "-N")
_PER_NODE = ("--nproc-per-node", "--nproc_per_node", "--gpus-per-node")
_TASKS = ("--ntasks", "-n", "-np")
_KNOWN_PROGRAM = "pretrain_gpt.py"
_TORCHTITAN = re.compile(r"torchtitan\.(?:\w+\.)*train|.*torchtitan/train\.py|.*run_train\.sh")
_NEMO = re.compile(r".*megatron_gpt_pretraining\.py")
_DEEPSPEED = re.compile(r"(?:.*/)?deepspeed|--deepspeed(?:_config)?(?:=.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A training program with its launcher and arguments."""

    before: tuple[str, ...]
    """Words before the program: torchrun and its arguments, srun."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    assumptions: tuple[str, ...]

    @property
    def tokenizer(self) -> str | None:
        """`--tokenizer-type`; GPT-2's where the command has only a file of merges."""
        usual = "GPT2BPETokenizer" if _value(self.arguments, ("--merge-file",)) else None
        return _value(self.arguments, ("--tokenizer-type",)) or usual


def launch_of(text: str, also: str = "", beside: Mapping[str, Any] = MappingProxyType({})) -> Launch:
    """The one launch of Megatron-LM in a bash text; `also` are variables that it is started with (`SIZE=7b`), and
    further arguments; `beside` are the `model`, `cluster` and `gpus` that were said.

    Raises:
        InputError: there is none, there are several that differ, or the text cannot be read.
    """
    more = read_script(also)
    started = more.environment | {
        name: value for one in more.commands for name, value in one.environment.items()
    }
    batch = _options(word for line in _SBATCH.findall(text) for word in line.partition(" #")[0].split())
    counts = _counted(batch)
    fixed = {name: str(counts[option]) for name, option in _SLURM.items() if option in counts}
    script = read_script(text, fixed | started)
    _require_heeded(text, script, started)
    launches = list(dict.fromkeys(_program(one) for one in script.commands if _is_launch(one)))
    if not launches:
        others = [
            plain("\0".join(one.words)).split("\0") for one in script.commands if one.words[0] not in SAYS
        ]
        for words in others:
            if (other := import_instead(words)) is not None:
                raise InputError(f"this starts {other[0]}, whose settings are in a file", hint=other[1])
        for words in others:
            said = " ".join(words)
            pairs = re.findall(r"(?:^|\s)(?:--)?([A-Za-z_][\w.-]*)[=\s]([^-\s]\S*)", said)
            refuse_foreign(said[:60], dict(pairs), said, beside)
        last = script.commands[-1].words if script.commands else ()
        if last[:1] == ("exit",):
            raise InputError(
                f"the script ends with `{plain(' '.join(last))}` before it starts a training",
                hint=_missing(script),
            )
        raise InputError(
            "nothing here starts `pretrain_gpt.py`", hint="paste the line that does, with its arguments"
        )
    if len(launches) > 1:
        raise InputError(
            f"{len(launches)} different commands start a training",
            problems=[Problem("", f"`{plain(' '.join((*one[0], *one[1])))[:120]}`") for one in launches],
            hint="paste the one to import",
        )
    before, arguments = launches[0]
    environment = next(one.environment for one in script.commands if _is_launch(one))
    batch |= _options(word for one in script.commands if one.words[0] == "sbatch" for word in one.words[1:])
    return Launch(
        before=(*before, *(word for option in _counted(batch).items() for word in map(str, option))),
        arguments=(*arguments, *(word for one in more.commands for word in one.words)),
        environment=environment,
        assumptions=script.assumptions,
    )


def _options(words: Iterable[str]) -> dict[str, str]:
    """Options of `sbatch` with their values: `-N2`, `-N 2`, `--nodes 2` and `--nodes=2` alike."""
    found, name = {}, ""
    for word in words:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            if name[:2] in _SHORT:
                name, value = _SHORT[name[:2]], word[2:].removeprefix("=")
            found[name] = value
        elif name:
            found[name], name = word, ""
    return found


def _counted(options: Mapping[str, str]) -> dict[str, int]:
    """Options with whole numbers, those that follow from others too; `a100:4` and `gpu:a100:4` count 4."""
    gpu = re.search(r"gpu(?::[^,:]+)*?(:\d+)?(?:,|$)", options.get("--gres", ""), re.ASCII)
    said = {**options, "--gres": (gpu[1] or ":1") if gpu else ""}
    numbers = {name: re.search(r"(?:^|:)(\d{1,7})$", text, re.ASCII) for name, text in said.items()}
    found = {name: int(number[1]) for name, number in numbers.items() if number}
    tasks, each = found.get("--ntasks", 0), found.get("--ntasks-per-node", 0)
    if tasks and each:
        found.setdefault("--nodes", -(-tasks // each))
    nodes = found.get("--nodes", 0)
    if nodes:
        tasks = found.setdefault("--ntasks", nodes * (each or 1))
        each = found.setdefault("--ntasks-per-node", tasks // nodes)
    gpus = found.get("--gres") or (found.get("--gpus", 0) // nodes if nodes else 0)
    if gpus := gpus or found.get("--gpus-per-task", 0) * each:
        found.setdefault("--gpus-per-node", gpus)
    if cpus := found.get("--cpus-per-task", 0) * each:
        found["--cpus-per-node"] = cpus
    return found


def _missing(script: Script) -> str:
    taken = [plain(" ".join(one.words)) for one in script.commands if one.words[0] in CALLS]
    if taken:
        return f"paste the files in the place of {', '.join(f'`{one[:60]}`' for one in taken)}"
    return 'variables that it branches on go in front: --also "SIZE=7b"'


def _require_heeded(text: str, script: Script, started: dict[str, str]) -> None:
    """Raise InputError where the script overwrites a variable of `--also` without using its value."""
    lost = [
        name
        for name, value in started.items()
        if script.environment.get(name) != value
        and not re.search(rf"\b{name}=[^\n]*\$\{{?{name}\b", text, re.ASCII)
    ]
    if lost:
        problems = [
            Problem(name, f"the script sets it to `{plain(script.environment.get(name, ''))}`")
            for name in lost
        ]
        raise InputError(
            "--also: the script sets variables by itself", problems=problems, hint="change them there"
        )


def _is_launch(command: Command) -> bool:
    words = command.words
    return words[0] not in SAYS and (any(map(_PROGRAM.match, words)) or "--num-layers" in words)


def _program(command: Command) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words before the program, and its arguments."""
    words = command.words
    for at, word in enumerate(words):
        if _PROGRAM.match(word):
            if not word.endswith(_KNOWN_PROGRAM):
                name = plain(word).rpartition("/")[2]
                raise InputError(f"`{name}` is not read here, only `{_KNOWN_PROGRAM}`")
            return (*command.starter, *words[:at]), words[at + 1 :]
    scripts = [at for at, word in enumerate(words) if word.endswith(".py")]
    start = scripts[-1] + 1 if scripts else 0
    return (*command.starter, *words[:start]), words[start:]


def world_size(launch: Launch, gpus: int | None) -> int:
    """GPUs that the launch says, or those that the user says.

    Raises:
        InputError: neither says them, or they contradict one another.
    """
    torchrun = any(
        plain(word).endswith(("torchrun", "torch.distributed.run", "launch")) for word in launch.before
    )
    per_node = _number(launch.before, _PER_NODE if torchrun else (*_PER_NODE, "--ntasks-per-node"))
    nodes = _number(launch.before, _NODES)
    if nodes is None and torchrun and _value(launch.before, _NODES) is None:
        nodes = 1
    said = per_node * nodes if per_node and nodes else None if torchrun else _number(launch.before, _TASKS)
    if said is None:
        if gpus is None:
            raise InputError("the command does not say on how many GPUs it runs", hint="--gpus says it")
        return gpus
    if gpus is not None and gpus != said:
        raise InputError(
            f"the command starts on {said} GPUs, --gpus says {gpus}",
            hint="leave out --gpus, or write the number of nodes into the command",
        )
    return said


def _number(words: Sequence[str], flags: Sequence[str]) -> int | None:
    values = [_value(words, [flag]) or "" for flag in flags]
    return next((int(one) for one in values if one.isascii() and one.isdecimal()), None)


def _value(words: Sequence[str], flags: Sequence[str]) -> str | None:
    """Value of the first of some flags that a command has; `?` where only the shell knows it."""
    values = (_take(words, flag)[0] for flag in flags)
    value = next((one for one in values if one is not None), None)
    return "?" if value is not None and not is_known(value) else value


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
    """Value of the first of some flags, and the words without the flag."""
    left = list(words)
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            if not equals and at + 1 < len(words):
                return words[at + 1], left[:at] + left[at + 2 :]
            return value if equals else None, left[:at] + left[at + 1 :]
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
