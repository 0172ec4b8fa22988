"""Rules of axolotl with FSDP2."""

from __future__ import annotations

from planner.formats.fsdp2 import POLICIES, STACK, fsdp2_rules
from planner.formats.trainer import Trainer

AXOLOTL = Trainer(
    name="axolotl",
    stack=STACK,
    rules=fsdp2_rules("axolotl"),
    policies=POLICIES,
    counts_full=False,
    source="axolotl-ai-cloud/axolotl 0.18.0: src/axolotl/utils/schemas/config.py, fsdp.py, validation.py",
)
