"""Context parallelism: which tokens of a sequence each rank has, and attention over those that others have."""

from __future__ import annotations
