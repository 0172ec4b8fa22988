"""What trains and measures needs the extra `run`; whoever asks for it is told before torch is imported."""

from __future__ import annotations

from cost_models.errors import require_installed


def require_torch(verb: str) -> None:
    """Raises HostError where torch, or what saves its tensors, is not installed."""
    require_installed(f"`{verb}`", torch="torch>=2.11", safetensors="safetensors>=0.5")
