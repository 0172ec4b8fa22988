"""Blocks whose states, weights or activations live in host memory: what lies where, what moves when, who updates it."""

from __future__ import annotations
