"""Blocks on stages where nobody says."""

from __future__ import annotations

import pytest

from cost_models.axes.stages import layers_up_to_shares


@pytest.mark.parametrize(
    ("blocks", "stages", "head", "layers"),
    [
        (24, 1, 2.5, (24,)),
        (24, 2, 2.45, (14, 10)),  # half of 26.45 is passed by the 14th block
        (24, 4, 2.45, (7, 7, 6, 4)),  # 6.6, 13.2, 19.8
        (24, 8, 2.45, (4, 3, 3, 4, 3, 3, 4, 0)),  # the last stage has the head alone
        (4, 2, 0.0, (3, 1)),  # a share is passed, not reached
    ],
)
def test_stages_fill_up_to_their_shares(
    blocks: int, stages: int, head: float, layers: tuple[int, ...]
) -> None:
    assert layers_up_to_shares(blocks, stages, head) == layers
