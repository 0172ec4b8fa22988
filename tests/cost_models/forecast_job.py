"""A job whose forecast tests look at."""

from __future__ import annotations

from cost_models.reliability import Job

JOB = Job(
    steps=300_000,
    step_seconds=5.0,
    checkpoint_bytes=13.8e12,
    gpus=3072,
    nodes=384,
    host_bandwidth=25e9,
    watts=400.0,
)
