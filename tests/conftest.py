"""What all tests share: a law is checked however slow the machine is today."""

from __future__ import annotations

from effort import THOROUGH
from hypothesis import settings

# The usual tests draw the same each time, so that one tree passes or fails alike everywhere.
settings.register_profile("meshwright", deadline=None, derandomize=not THOROUGH)
settings.load_profile("meshwright")
