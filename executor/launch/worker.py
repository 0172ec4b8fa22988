"""The process of one rank, as torchrun starts it: `python -m executor.launch.worker plan.yaml run.json`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path

import torch

from cost_models.errors import HostError, InputError
from executor.launch.orphans import PARENT, end_with_parent
from executor.launch.rank import work
from executor.launch.requirements import require_world
from executor.run_config import RunConfig
from planner.plan_files import load_any_plan


def main() -> None:
    """Read the command line; exits 1 after a failure, so that torchrun ends the other ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("config", type=Path)
    given = parser.parse_args()
    if PARENT in os.environ:
        end_with_parent()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        plan = load_any_plan(given.plan)
        require_world(plan, given.plan.name)
        work(plan, RunConfig.model_validate_json(given.config.read_text("utf-8")))
    except (HostError, InputError) as error:
        sys.exit(f"error: {error}")
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # threads of a save or of gloo may never end
    sys.stdout.flush()
    sys.stderr.flush()
    # The report is on disk. Taking the interpreter down with gloo's threads still alive aborts one run in ten
    # ("terminate called without an active exception"), so leave without it.
    os._exit(0)


if __name__ == "__main__":
    main()
