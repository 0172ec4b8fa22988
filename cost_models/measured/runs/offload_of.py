"""What a row keeps in host memory: with FSDP weights, gradients and states, with others what its words say."""

from __future__ import annotations

import re

from cost_models.axes.offload import NOWHERE, USUAL_RING, Offload
from cost_models.axes.words import EVERY
from cost_models.measured.runs.notes import Notes
from cost_models.measured.runs.policies_of import NOTHING
from cost_models.measured.runs.row import Row
from cost_models.specs.stack import StackSpec


def offload_of(row: Row, stack: StackSpec, blocks: int, notes: Notes) -> tuple[Offload, int]:
    """The residency of a row's blocks, and the buffers of its ring; `blocks` are those of its model."""
    words = row.text("offload").lower()
    if not words or NOTHING.fullmatch(words):
        return NOWHERE, USUAL_RING
    if "window" in words:
        window = min(row.count("window") or 1, blocks)
        notes.assume(f"a ring of {window} blocks besides {window} that stay on the device")
        return Offload(streamed=blocks - window), window
    if ("activation" in words and "(" in words) or (
        "see notes" in words and "activation" in row.text("notes").lower()
    ):
        notes.assume("activations of some operators in host memory count as on the device")
        return NOWHERE, USUAL_RING
    if "activation" in words:
        notes.assume("activations in host memory")
        return Offload(activations=EVERY), USUAL_RING
    if "nvme" in words:
        notes.assume("NVMe as fast as host memory")
    whole = re.search(r"param|weight|model|nvme|infinity", words) or (
        stack.usual_offload == "streamed" and not re.search("optim|state", words)
    )
    kept = "weights, gradients and optimizer states" if whole else "optimizer states"
    notes.assume(f"{kept} in host memory, updated by the CPU")
    return (Offload(streamed=EVERY) if whole else Offload(states=EVERY)), USUAL_RING
