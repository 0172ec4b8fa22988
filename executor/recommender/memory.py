"""Memory of a recommender on this rank: the most that was on the device in a step, by part, and what hosts hold."""

from __future__ import annotations

from executor.data.clicks import Clicks
from executor.measure.storages import HOST, REST, StorageTracker
from executor.recommender.engine import RecommenderEngine

PARTS = ("tables", "optimizer", "dense", REST)


def peak_memory(engine: RecommenderEngine, clicks: Clicks) -> dict[str, int]:
    """Part → bytes on the device at the peak of one step, which it trains; host memory is in none of them."""
    tracker = StorageTracker()
    for name in (*PARTS, HOST):
        tracker.name(name, ())
    for holding in engine.embeddings.held.values():
        index = [] if holding.keys is None else [holding.keys.keys, holding.keys.places]
        tracker.name("tables", [holding.device.weights, *index])
        tracker.name("optimizer", holding.device.states.values())
        if holding.host is not None:
            tracker.name(HOST, [holding.host.weights, *holding.host.states.values()])
    tracker.name("dense", engine.network.parameters())
    for state in engine.dense_optimizer.state.values():
        tracker.name("dense", state.values())
    tracker.name(REST, [clicks.dense, clicks.labels])
    tracker.name(REST, [part for bags in clicks.ids for part in (bags.values, bags.lengths)])
    with tracker:
        engine.step(clicks)
    return {name: tracker.peak.get(name, 0) for name in PARTS}


def held_on_host(engine: RecommenderEngine) -> int:
    """Bytes of rows and states in host memory."""
    return sum(one.host.nbytes for one in engine.embeddings.held.values() if one.host is not None)
