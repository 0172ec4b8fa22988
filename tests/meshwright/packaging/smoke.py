"""What a fresh installation must do: `python smoke.py FOLDER`, from outside the tree, by its own interpreter.

Only the standard library and the `meshwright` beside that interpreter are used. Exit code 1 names what failed.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

_JOB = "--gpus 64 --global-batch 512 --sequence 4096"
COMMANDS = [
    (0, "--version"),
    (0, f"plan llama3-8b dgx-h100 {_JOB} -o plan.yaml"),
    (0, f"estimate llama3-8b dgx-h100 {_JOB} --layout 'tp8 dp8 mbs1 zero1' -o other.yaml"),
    (0, "explain plan.yaml --why-not tp8"),
    (0, "compare plan.yaml other.yaml"),
    (0, "verify plan.yaml"),
    (0, "plot memory plan.yaml -o memory.png"),
    (0, "export plan.yaml --to megatron -o run.sh --partly"),
    (0, "report plan.yaml -o plan.html"),
    (0, "plan dlrm-dcnv2 dgx-h100 --gpus 8 --global-batch 55296 --time-limit 2 -o sharding.yaml"),
    (0, "catalog models"),
]
_WITHOUT_TORCH = [(2, "run plan.yaml"), (2, "doctor"), (2, "calibrate -o profile.yaml")]


def main(folder: Path) -> None:
    """Run every command in the folder; those that need torch are tried only where it is missing."""
    failed = 0
    wanted = COMMANDS if importlib.util.find_spec("torch") else COMMANDS + _WITHOUT_TORCH
    for code, command in wanted:
        program = Path(sys.executable).with_name("meshwright")
        done = subprocess.run([program, *shlex.split(command)], cwd=folder, capture_output=True, text=True)
        if done.returncode != code or (code == 2 and "hint: pip install 'torch" not in done.stderr):
            failed += 1
            print(f"meshwright {command}: {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
    names = "import meshwright as mw; [getattr(mw, name) for name in mw.__all__]"
    failed += bool(subprocess.run([sys.executable, "-W", "error", "-c", names], cwd=folder).returncode)
    print(f"Python {sys.version.split()[0]}: {len(wanted) + 1 - failed} of {len(wanted) + 1} as expected")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
