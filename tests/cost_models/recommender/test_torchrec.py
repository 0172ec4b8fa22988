"""TorchRec's prices: figures that its own estimators, release 1.8.0, gave for three tables with their defaults.

`EmbeddingEnumerator(Topology(world_size, local_world_size, compute_device="cuda"), batch_size=512)`; milliseconds of
`Perf` (forward compute, forward exchange, backward compute, backward exchange) and bytes of `Storage`.
"""

from __future__ import annotations

import numpy as np
import pytest
from asked import asked, option_of

from benchmarks.recommenders.planners.torchrec import TorchRecTopology, torchrec_options
from cost_models.errors import InputError
from cost_models.recommender.options import STAGES
from cost_models.specs.recommender.model import TableSpec

T0 = TableSpec(name="t0", rows=1_000_000, width=128, pooling=3.0)
T1 = TableSpec(name="t1", rows=1003, width=48)
T2 = TableSpec(name="t2", rows=5000, width=256, pooling=20.0)

TOLD = [  # table, option, nodes of 8, forward, exchange, backward, exchange back, device bytes, host bytes
    (T0, "whole", 2, 0.017623306, 0.3125, 0.035246612, 0.3125, 516390912, 0),
    (T0, "column2", 2, 0.0102507762, 0.15625, 0.0205015525, 0.15625, 258293760, 0),
    (T0, "row", 2, 0.00518407577, 0.3125, 0.0103681515, 0.323191019, 36206592, 0),
    (T0, "node-row", 2, 0.00601335779, 0.0455729167, 0.0120267156, 0.0562639353, 68218880, 0),
    (T0, "copy", 2, 0.00220291325, 0, 0.0044058265, 16.9550961, 512274432, 0),
    (T0, "whole/host", 2, 4.94003296, 0.3125, 9.88006592, 0.3125, 4390912, 512000000),
    (T0, "whole/cached(0.2)", 2, 0.771127096, 0.3125, 1.54225419, 0.3125, 113990912, 512000000),
    (T0, "column2/cached(0.2)", 2, 0.448533965, 0.15625, 0.897067931, 0.15625, 60693760, 256000000),
    (T0, "row/host", 2, 1.45316124, 0.3125, 2.90632248, 3.30932617, 4206592, 32000000),
    (T1, "whole", 2, 0.0058347432, 0.1171875, 0.0116694864, 0.1171875, 1830976, 0),
    (T1, "row", 2, 0.00173936587, 0.1171875, 0.00347873173, 0.121196632, 1589056, 0),
    (T1, "node-row", 2, 0.00184568407, 0.0170898438, 0.00369136815, 0.0210989758, 1605248, 0),
    (T1, "copy", 2, 0.000416767371, 0, 0.000833534743, 0.0063772355, 294976, 0),
    (T2, "row", 1, 0.0153268327, 0.00651041667, 0.0306536654, 0.0172014353, 4916224, 0),
    (T2, "column2", 1, 0.046405771, 0.00325520833, 0.0928115419, 0.00325520833, 5312512, 0),
    (T2, "node-row/cached(0.2)", 1, 0.670642388, 0.00651041667, 1.34128478, 0.474307673, 4408724, 640000),
    (T2, "copy", 2, 0.0230327764, 0, 0.0460655527, 0.169550961, 5726208, 0),
]  # fmt: skip


@pytest.mark.parametrize(("table", "option", "nodes", "told"), [(*one[:3], one[3:]) for one in TOLD])
def test_prices_are_those_of_its_estimators(
    table: TableSpec, option: str, nodes: int, told: tuple[float, ...]
) -> None:
    *milliseconds, size, host = told
    question = asked(table, nodes=nodes, batch=512 * 8 * nodes)
    found = torchrec_options(question, [(0, option_of(option))], TorchRecTopology())
    seconds = (found.shard_seconds + found.everywhere_seconds)[0]
    stages = (STAGES.lookup, STAGES.forward_exchange, STAGES.update, STAGES.backward_exchange)
    assert [seconds[STAGES.index(one)] * 1e3 for one in stages] == pytest.approx(milliseconds, rel=1e-7)
    assert seconds.sum() * 1e3 == pytest.approx(sum(milliseconds), rel=1e-7)
    assert found.shard_bytes[0] + found.everywhere_bytes[0] == size
    here = 8 if option.startswith(("row", "node-row")) else 1
    assert found.shard_host_bytes[0] + found.everywhere_host_bytes[0] == here * host
    assert not np.concatenate([found.fixed, found.stage_floors]).any()


def test_options_that_it_has_not_are_refused() -> None:
    with pytest.raises(InputError, match="TorchRec has no"):
        torchrec_options(asked(T0), [(0, option_of("hot(0.1)+row"))])
    skewed = asked(T0.model_copy(update={"zipf": 1.1}))
    assert not any(option.hot for option in torchrec_options(skewed).options)
