"""The answer of `calibrate`: the profile that was measured on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted, format_bandwidth, format_seconds
from meshwright.render.tables import Table, table
from meshwright.render.words import percent, wrapped
from meshwright.verbs.contract.answer import AnswerBase


@dataclass(frozen=True, kw_only=True, repr=False)
class MeasuredProfile(AnswerBase):
    """A profile and the file it is written to."""

    profile: HardwareProfile
    file: Path

    @property
    def rows(self) -> list[dict[str, str]]:
        """What a person wants to check: rates and start-up times; the file has the rest."""
        profile = self.profile
        shares = (
            "gemm_efficiency",
            *(["gemm_settled"] if profile.gemm_settled is not None else []),
            "attention_forward_efficiency",
            "attention_backward_efficiency",
            "memory_efficiency",
            "optimizer_efficiency",
            "link_efficiency",
        )
        times = ("kernel_seconds", "host_layer_seconds", "collective_seconds", "step_seconds")
        rows = [(name, getattr(profile, name), percent(getattr(profile, name))) for name in shares]
        rows += [(name, getattr(profile, name), format_seconds(getattr(profile, name))) for name in times]
        if profile.measured_peak is not None:
            rows.insert(
                0, ("measured_peak", profile.measured_peak, f"{profile.measured_peak / 1e9:.4g} GFLOP/s")
            )
        if profile.measured_bandwidth is not None:
            rows.insert(
                1,
                (
                    "measured_bandwidth",
                    profile.measured_bandwidth,
                    format_bandwidth(profile.measured_bandwidth),
                ),
            )
        rows += _of_the_host(profile)
        said = [{"constant": name, "value": repr(value), "text": text} for name, value, text in rows]
        if (kernel := profile.attention_kernel) is not None:
            said.append({"constant": "attention_kernel", "value": kernel, "text": kernel})
        return said

    def document(self) -> dict[str, Any]:
        return {"file": str(self.file), "profile": self.profile.model_dump(mode="json")}

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright calibrate` prints."""
        cells = [(row["constant"], row["text"]) for row in self.rows]
        said = wrapped(f"profile {self.profile.name}: {self.profile.source}")
        return said, "", table(("constant", "value"), cells, words=("constant",))


def _of_the_host(profile: HardwareProfile) -> list[tuple[str, float, str]]:
    """What offload asks of it, each rank's while all others do the same; nothing where it was not measured."""
    update, rates = profile.host_update_seconds, profile.host_rates
    if update is None or rates is None:
        return []
    rows = [
        ("host_update_seconds", update, f"{update * 1e9:.3g} ns a parameter"),
        (
            "host_call_seconds",
            profile.host_call_seconds,
            f"{format_seconds(profile.host_call_seconds)} a block",
        ),
        ("host_overlap", profile.host_overlap, percent(profile.host_overlap)),
    ]
    rows += [
        (
            f"update, {counted(one.threads, 'thread')} a rank",
            one.seconds,
            f"{one.seconds * 1e9:.3g} ns a parameter",
        )
        for one in rates.updates
    ]
    within = "copy within memory" if profile.measured_peak is not None else "pinned copy"
    for one in rates.copies:
        from_ranks = f"{counted(one.ranks, 'rank')} at once"
        rows += [
            (f"{within} {way}, {from_ranks}", rate, format_bandwidth(rate))
            for way, rate in (("down", one.down), ("up", one.up), ("each way", one.both))
        ]
    return rows
