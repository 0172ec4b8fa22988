"""torchrun that ends, and its ranks with it, when the launcher is gone: `python -m executor.launch.agent ARGUMENTS`."""

from __future__ import annotations

import os

from torch.distributed.run import main

from executor.launch.environment import PARENT, end_with_parent

if __name__ == "__main__":
    end_with_parent()
    os.environ[PARENT] = str(os.getpid())  # that of the ranks
    main()
