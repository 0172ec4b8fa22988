"""Rules of accelerate with FSDP2."""

from __future__ import annotations

from planner.formats.fsdp2 import POLICIES, STACK, fsdp2_rules
from planner.formats.trainer import Trainer

ACCELERATE = Trainer(
    name="accelerate",
    stack=STACK,
    rules=fsdp2_rules("accelerate"),
    policies=POLICIES,
    counts_full=False,
    source="huggingface/accelerate 1.15.0: parallelism_config.py, utils/dataclasses.py, utils/fsdp_utils.py",
)
