"""What offloading costs in sentences: the channels of a step, the one that binds, the ring, and break-even tokens."""

from __future__ import annotations

from cost_models.axes.offload.binding import HostWindows, host_windows
from cost_models.estimate import Estimate
from cost_models.question import Question
from cost_models.units import format_seconds, grouped
from meshwright.render.words import wrapped


def host_sentences(question: Question, estimate: Estimate) -> tuple[str, ...]:
    """A line each; nothing of a layout that keeps nothing in host memory."""
    found = host_windows(question, estimate)
    if found is None:
        return ()
    lines = (_channels(found), _binds(found), _ring(found, estimate.layout.ring), _update(found))
    return tuple(wrapped(line) for line in lines if line)


def _channels(found: HostWindows) -> str:
    busy = f"link down {format_seconds(found.down)}, up {format_seconds(found.up)}"
    waits = f"{format_seconds(found.exposed)} are waited for" if found.exposed else "nothing is waited for"
    update = f"CPU update {format_seconds(found.update)}"
    if found.read or found.write:
        update += f", drive read {format_seconds(found.read)}, write {format_seconds(found.write)}"
    hides = f"the passes can hide {format_seconds(found.hidden)}"
    if found.late_hidden < found.hidden:
        hides += f", of updates {format_seconds(found.late_hidden)}"
    return f"host: {busy}, {update} a step; {hides}; {waits}"


def _binds(found: HostWindows) -> str:
    if found.binding == "nothing":
        return "Of the host nothing binds."
    if found.binding in ("host memory", "drive", "device memory"):
        return f"Of the tiers {found.binding} binds: it is full."
    return f"Of the host the {found.binding.removeprefix('host ')} binds."


def _ring(found: HostWindows, ring: int) -> str:
    """Whether the ring is long enough for the forward passes, and what would help where none is."""
    if found.transfer is None or found.forward_tokens is None:
        return ""
    times = f"weights of a block come in {format_seconds(found.transfer)}, its forward pass takes"
    times += f" {format_seconds(found.forward)}"
    if found.ring is not None:
        more = "" if ring >= found.ring else f", not ring={ring}"
        return f"ring={found.ring} suffices{more}: {times}."
    return (
        f"No ring hides weights: {times}; from {grouped(round(found.forward_tokens))} tokens a microbatch on"
        f" ring=2 does (now {grouped(round(found.microbatch_tokens))}), or fewer streamed blocks."
    )


def _update(found: HostWindows) -> str:
    if found.update == 0:
        return ""
    if found.update_tokens is None:
        return "This stack updates after the passes, so nothing hides the CPU's update."
    verb = "hides" if found.update_tokens <= found.microbatch_tokens else "would hide"
    drive = " with what it takes from the drive" if found.read else ""
    return (
        f"The CPU's update{drive} {verb} from {grouped(round(found.update_tokens))} tokens a microbatch on"
        f" (now {grouped(round(found.microbatch_tokens))})."
    )
