"""What all tests share: a law is checked however slow the machine is today."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("meshwright", deadline=None)
settings.load_profile("meshwright")
