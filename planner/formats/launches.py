"""Training command in a bash script or a pasted line: its arguments and its number of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

from cost_models.errors import InputError, Problem
from planner.formats.bash import BUILTINS, CALLS, Command, Script, is_decided, plain, read_script
from planner.formats.megatron_arguments import printed_arguments
from planner.formats.registry import refuse_foreign
from planner.formats.settings import also_words, gpus_of

_PROGRAM = re.compile(r"(?:^|.*[/\ue001])?pretrain_\w+\.py$", re.DOTALL)
_SBATCH = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus"}
_SLURM = {
    **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "--nodes"),
    **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), "--ntasks"),
    **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), "--ntasks-per-node"),
    **dict.fromkeys(("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), "--gpus-per-node"),
    **dict.fromkeys(("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"), "--cpus-per-node"),
    "SLURM_GPUS": "--gpus",
    "SLURM_GPUS_PER_TASK": "--gpus-per-task",
    "SLURM_CPUS_PER_TASK": "--cpus-per-task",
}
"""Option of `sbatch` that determines each variable set by Slurm."""
_NODES = ("--nnodes", "--nodes", "-N")
_PER_NODE = ("--nproc-per-node", "--nproc_per_node", "--gpus-per-node")
_TASKS = ("--ntasks", "-n", "-np")
_KNOWN_PROGRAM = "pretrain_gpt.py"
_OTHER_TRAINERS = {
    "torchtitan": re.compile(r"torchtitan\.(?:\w+\.)*train|.*torchtitan/train\.py|.*run_train\.sh"),
    "NeMo": re.compile(r".*megatron_gpt_pretraining\.py"),
    "DeepSpeed": re.compile(r"(?:.*/)?deepspeed|--deepspeed(?:_config)?(?:=.*)?"),
}
"""Pattern of the words that start each other trainer, by its name."""


class Launch(NamedTuple):
    """A Megatron-LM training command split into launcher, arguments and environment."""

    launcher: tuple[str, ...]
    """Words before the program, such as torchrun with its arguments, or srun."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    assumptions: tuple[str, ...]


def launch_of(text: str, also: str = "", options: Mapping[str, Any] = MappingProxyType({})) -> Launch:
    """Find the single Megatron-LM training command in a bash text, or else the arguments at the head of its
    log.

    Raises:
        InputError: there is none, there are several that differ, or the text cannot be read.
    """
    try:
        return _launch_in_script(text, also, options)
    except InputError:
        values, words, unknown = printed_arguments(text)
        if not {"num_layers", "hidden_size"} <= values.keys():
            raise
    listed = f"nothing of what the log prints of {', '.join(unknown[:8])}: not known here"
    ranks = values.get("world_size")
    launcher = () if ranks is None else ("--nproc-per-node", str(ranks), "--nnodes", "1")
    return Launch(launcher, (*words, *also_words(also)), {}, (listed,) if unknown else ())


def _launch_in_script(text: str, also: str, options: Mapping[str, Any]) -> Launch:
    """Find the single command in a bash text that starts Megatron-LM. Raises InputError as `launch_of` does."""
    also_script = read_script(also)
    started = also_script.environment | {
        name: value for one in also_script.commands for name, value in one.environment.items()
    }
    batch = _options(word for line in _SBATCH.findall(text) for word in line.partition(" #")[0].split())
    counts = _integer_options(batch)
    fixed = {name: str(counts[option]) for name, option in _SLURM.items() if option in counts}
    script = read_script(text, fixed | started)
    _require_also_used(text, script, started)
    programs = [one for one in script.commands if one.words[0] not in BUILTINS]
    trainings = [
        one for one in programs if "--num-layers" in one.words or any(map(_PROGRAM.match, one.words))
    ]
    launches = list(dict.fromkeys(map(_program, trainings)))
    if not launches:
        commands = [plain("\0".join(one.words)).split("\0") for one in programs]
        for words in commands:
            _refuse_other(words)
        for words in commands:
            command_line = " ".join(words)
            pairs = re.findall(r"(?:^|\s)(?:--)?([A-Za-z_][\w.-]*)[=\s]([^-\s]\S*)", command_line)
            refuse_foreign(command_line[:60], dict(pairs), command_line, options)
        last = script.commands[-1].words if script.commands else ()
        if last[:1] == ("exit",):
            message = f"the script ends with `{plain(' '.join(last))}` before it starts a training"
            sourced = [plain(" ".join(one.words)) for one in script.commands if one.words[0] in CALLS]
            hint = f"paste the files in the place of {', '.join(f'`{one[:60]}`' for one in sourced)}"
            branches = 'variables that it branches on go in front: --also "SIZE=7b"'
            raise InputError(message, hint=hint if sourced else branches)
        hint = "paste the line that does, with its arguments"
        raise InputError("nothing here starts `pretrain_gpt.py`", hint=hint)
    if len(launches) > 1 and len({arguments for _, arguments in launches}) == 1:
        job = f"one job of {len(launches)} commands with the same arguments, as `ps` lists"
        script.values.assumptions[job] = None
        launches = [one for one in launches if _value(one[0], _PER_NODE)] or launches[:1]
    if len(launches) > 1:
        problems = [Problem("", f"`{plain(' '.join((*one[0], *one[1])))[:120]}`") for one in launches]
        message = f"{len(launches)} different commands start a training"
        raise InputError(message, problems=problems, hint="paste the one to import")
    launcher, arguments = launches[0]
    batch |= _options(word for one in script.commands if one.words[0] == "sbatch" for word in one.words[1:])
    count_words = (word for option in _integer_options(batch).items() for word in map(str, option))
    further = (word for one in also_script.commands for word in one.words)
    environment, assumptions = trainings[0].environment, tuple(script.values.assumptions)
    return Launch((*launcher, *count_words), (*arguments, *further), environment, assumptions)


def _options(words: Iterable[str]) -> dict[str, str]:
    """Values of the options of `sbatch` by long name; `-N2`, `-N 2`, `--nodes 2` and `--nodes=2` are
    equivalent."""
    options, name = {}, ""
    for word in words:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            if name[:2] in _SHORT:
                name, value = _SHORT[name[:2]], word[2:].removeprefix("=")
            options[name] = value
        elif name:
            options[name], name = word, ""
    return options


def _integer_options(options: Mapping[str, str]) -> dict[str, int]:
    """Integer values of the options of `sbatch` by name, with derived ones such as tasks per node; `a100:4`
    and `gpu:a100:4` mean 4."""
    gpu = re.search(r"gpu(?::[^,:]+)*?(:\d+)?(?:,|$)", options.get("--gres", ""), re.ASCII)
    texts = {**options, "--gres": (gpu[1] or ":1") if gpu else ""}
    numbers = {name: re.search(r"(?:^|:)(\d{1,7})$", text, re.ASCII) for name, text in texts.items()}
    counts = {name: int(number[1]) for name, number in numbers.items() if number}
    tasks, per_node = counts.get("--ntasks", 0), counts.get("--ntasks-per-node", 0)
    if tasks and per_node:
        counts.setdefault("--nodes", -(-tasks // per_node))
    nodes = counts.get("--nodes", 0)
    if nodes:
        tasks = counts.setdefault("--ntasks", nodes * (per_node or 1))
        per_node = counts.setdefault("--ntasks-per-node", tasks // nodes)
    gpus = counts.get("--gres") or (counts.get("--gpus", 0) // nodes if nodes else 0)
    if gpus := gpus or counts.get("--gpus-per-task", 0) * per_node:
        counts.setdefault("--gpus-per-node", gpus)
    if cpus := counts.get("--cpus-per-task", 0) * per_node:
        counts["--cpus-per-node"] = cpus
    return counts


def _require_also_used(text: str, script: Script, started: dict[str, str]) -> None:
    """Raise InputError if the script overwrites a variable of `--also` without using its value."""
    values = script.environment
    problems = [
        Problem(name, f"the script sets it to `{plain(values.get(name, ''))}`")
        for name, value in started.items()
        if values.get(name) != value and not re.search(rf"\b{name}=[^\n]*\$\{{?{name}\b", text, re.ASCII)
    ]
    if problems:
        hint = "change them there"
        raise InputError("--also: the script sets variables by itself", problems=problems, hint=hint)


def _program(command: Command) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a launch command into the words before the training program and the program's arguments."""
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
    """Number of GPUs of a launch: the command's, or else the user's.

    Raises:
        InputError: neither says them, or they contradict one another.
    """
    words, programs = launch.launcher, ("torchrun", "torch.distributed.run", "launch")
    torchrun = any(plain(word).endswith(programs) for word in words)
    per_node = _number(words, _PER_NODE if torchrun else (*_PER_NODE, "--ntasks-per-node"))
    nodes = _number(words, _NODES)
    if nodes is None and torchrun and _value(words, _NODES) is None:
        nodes = 1
    total = per_node * nodes if per_node and nodes else None if torchrun else _number(words, _TASKS)
    if total is None:
        return gpus_of("command", gpus)
    if gpus not in (None, total):
        hint = "leave out --gpus, or write the number of nodes into the command"
        raise InputError(f"the command starts on {total} GPUs, --gpus says {gpus}", hint=hint)
    return total


def _number(words: Sequence[str], flags: Sequence[str]) -> int | None:
    """First integer value of the flags in a command; None if there is none."""
    values = (_value(words, [flag]) or "" for flag in flags)
    return next((int(value) for value in values if value.isascii() and value.isdecimal()), None)


def _value(words: Sequence[str], flags: Sequence[str]) -> str | None:
    """Value of the first flag of `flags` in a command; `?` if only a shell knows the value, None if the
    command has no such flag."""
    value = next((text for flag in flags if (text := _take_flag(words, flag)[0]) is not None), None)
    return "?" if value is not None and not is_decided(value) else value


def _refuse_other(words: Sequence[str]) -> None:
    """Raise InputError if a command starts another trainer (torchtitan, NeMo, DeepSpeed); the hint is the
    `meshwright import` command for that trainer's files."""
    for name, program in _OTHER_TRAINERS.items():
        places = [at for at, word in enumerate(words) if program.fullmatch(plain(word))]
        if not places:
            continue
        arguments = list(words[places[-1] + 1 :])
        match name:
            case "torchtitan":
                file, arguments = _take_flag(arguments, "--job.config_file", "--job.config-file")
                module, arguments = _take_flag(arguments, "--module")
                file = file or (f"{module}/config_registry.py" if module else "recipe.py")
                place_words = "CLUSTER --gpus N"
            case "NeMo":
                folder, arguments = _take_flag(arguments, "--config-path", "-cp")
                stem, arguments = _take_flag(arguments, "--config-name", "-cn")
                file = str(PurePosixPath(folder or ".") / f"{(stem or 'gpt').removesuffix('.yaml')}.yaml")
                place_words = "CLUSTER"
            case _:
                file, arguments = _take_flag(words, "--deepspeed_config", "--deepspeed")[0] or "", []
                file = file if file.endswith(".json") else "ds.json"
                place_words = "MODEL CLUSTER --gpus N --sequence S"
        also = f' --also "{plain(" ".join(arguments))}"' if arguments else ""
        hint = f"meshwright import {plain(file)} {place_words}{also}"
        raise InputError(f"this starts {name}, whose settings are in a file", hint=hint)


def _take_flag(words: Sequence[str], *flags: str) -> tuple[str | None, list[str]]:
    """Value of the first word that is one of the flags, and the words without this flag and its value."""
    remaining = list(words)
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            if not equals and at + 1 < len(words):
                return words[at + 1], remaining[:at] + remaining[at + 2 :]
            return value if equals else None, remaining[:at] + remaining[at + 1 :]
    return None, remaining
