"""How well a recommender ranks samples: the area under the curve (AUC) of clicks over the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from executor.data.clicks import Clicks
from executor.recommender.engine import RecommenderEngine


def area_under_curve(engine: RecommenderEngine, samples: Sequence[Clicks]) -> float:
    """The chance that a clicked sample of this rank scores above one that was not; ½ is guessing. Trains nothing.

    Every rank calls it, as rows of others are looked up.
    """
    scores = torch.cat([engine.scores(one).flatten() for one in samples]).double().numpy()
    labels = torch.cat([one.labels.flatten() for one in samples]).numpy() > 0.5
    ranks = np.empty(len(scores))
    ranks[scores.argsort()] = np.arange(1, len(scores) + 1)
    clicked, rest = int(labels.sum()), int((~labels).sum())
    if not clicked or not rest:
        return float("nan")
    return float((ranks[labels].sum() - clicked * (clicked + 1) / 2) / (clicked * rest))
