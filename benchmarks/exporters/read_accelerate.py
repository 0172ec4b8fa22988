"""accelerate's own launcher: files as JSON on stdin, what it read or why it refused as JSON on stdout.

    python benchmarks/exporters/read_accelerate.py < cases.json

A case is {"text": .., "world": 16}. Its command line is parsed and filled from the file; the variables that it would
start processes with are set, and the plugin and the mesh that a process makes of them are read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any


def read(module: Any, case: dict[str, Any], file: Path) -> dict[str, Any]:
    """What the launcher makes of one case."""
    file.write_text(case["text"], encoding="utf-8")
    of_program = (
        case["text"].partition("train.py")[2].partition("\n")[0]
    )  # of the command that the file begins with
    words = ["--config_file", str(file), "train.py", *of_program.split()]
    try:
        args, kind, _ = module.launch._validate_launch_command(
            module.launch.launch_command_parser().parse_args(words)
        )
        environment = module.prepare_multi_gpu_env(args)
    except (ValueError, FileNotFoundError) as error:
        return {"refused": str(error) or type(error).__name__}
    del kind
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        plugin = module.Plugin() if args.use_fsdp else None
        mesh = module.Mesh() if args.use_parallelism_config else None
    except ValueError as error:
        return {"refused": str(error)}
    finally:
        os.environ.clear()
        os.environ.update(before)
    return {
        "values": {
            "num_processes": args.num_processes,
            "num_machines": args.num_machines,
            "mixed_precision": args.mixed_precision,
            "fsdp": plugin is not None,
            "version": plugin.fsdp_version if plugin else None,
            "reshard": plugin.reshard_after_forward if plugin else None,
            "checkpointing": plugin.activation_checkpointing
            if plugin
            else "--gradient_checkpointing" in args.training_script_args,
            "offload": type(plugin.cpu_offload).__name__ if plugin else None,
            "tp": mesh.tp_size if mesh else None,
            "cp": mesh.cp_size if mesh else None,
            "shard": mesh.dp_shard_size if mesh else None,
            "replicate": mesh.dp_replicate_size if mesh else None,
        }
    }


def main() -> None:
    """Read all cases."""
    cases = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        import accelerate.commands.launch
        from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig
        from accelerate.utils.launch import prepare_multi_gpu_env

        class Module:
            launch = accelerate.commands.launch
            Plugin = FullyShardedDataParallelPlugin
            Mesh = ParallelismConfig

        Module.prepare_multi_gpu_env = staticmethod(prepare_multi_gpu_env)
        logging.disable(logging.WARNING)
        answers = [read(Module, case, Path(folder, "accelerate.yaml")) for case in cases]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
