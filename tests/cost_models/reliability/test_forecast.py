"""Forecasts of jobs: parts that sum, draws that agree, changes that help, and jobs that never end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from forecast_job import JOB

from cost_models.errors import InfeasibleError, InputError
from cost_models.files.catalog import load_operations, names
from cost_models.reliability import RUNS, changes_of, draw_ends, draw_ends_of, forecast
from cost_models.specs.cluster import OperationsSpec


def operations(**fields: Any) -> OperationsSpec:
    usual = {"mtbf": "50700 h", "detection": "1 min", "restart": "5 min", "storage_write": "273 GB/s"}
    return OperationsSpec.model_validate(usual | fields)


MAINTENANCE = {"every": "14 d", "takes": "6 h"}
SLOW = {"slow_hosts": 0.002, "slowness": 0.1, "pause": 4.0}
BUSY = operations(mtbf="20000 h", spares=3, repair="8 h", maintenance=MAINTENANCE, **SLOW)


def test_a_checkpoint_of_a_trillion_parameters_takes_fifty_seconds() -> None:
    """Narayanan et al. 2021, section 5.10: 13.8 TB at 273 GB/s."""
    found = forecast(JOB, operations())
    assert found.flush == pytest.approx(50.5, abs=0.1)
    assert found.copy == pytest.approx(13.8e12 / 3072 / 25e9)


def test_the_slow_hosts_of_a_source_cost_what_it_says() -> None:
    """MegaScale trains for more than 90 % of its time on 12,288 GPUs, slow hosts found and replaced."""
    own = replace(JOB, gpus=12_288, nodes=1_536, steps=80_000, step_seconds=6.3, checkpoint_bytes=175e9 * 14)
    found = forecast(own, load_operations("megascale"))
    assert found.evicts
    assert 0.90 < found.goodput < 0.95
    assert found.parts["stragglers"] < 0.02 * found.seconds
    assert draw_ends(found, runs=2000).mean() == pytest.approx(found.seconds, rel=0.005)


def test_ends_are_as_uncertain_as_the_step() -> None:
    """Steps between half and twice as long spread the end by about as much, whatever failures add."""
    found = forecast(JOB, operations())
    ends = draw_ends_of(found, np.array([0.5, 1.0, 2.0]) * JOB.step_seconds, runs=300)
    early, middle, late = np.quantile(ends, (0.05, 0.5, 0.95))
    assert late / early > 3.5
    assert middle == pytest.approx(found.seconds, rel=0.05)


def test_parts_sum_to_the_whole() -> None:
    found = forecast(JOB, BUSY)
    assert found.parts.total == pytest.approx(found.seconds)
    assert all(seconds > 0 for seconds in found.parts.values())
    assert found.goodput == pytest.approx(found.parts["training"] / found.parts.total)


def test_energy_is_that_of_all_time_but_planned_stops() -> None:
    found = forecast(replace(JOB, watts=700.0), BUSY)
    seconds = found.parts.total - found.parts["maintenance"]
    assert found.kilowatt_hours == pytest.approx(seconds * JOB.gpus * 0.7 / 3600)


def test_draws_agree_with_mean_and_deviation() -> None:
    found = forecast(JOB, BUSY)
    ends = draw_ends(found)
    assert len(ends) == RUNS
    assert ends.mean() == pytest.approx(found.seconds, abs=3 * found.deviation / np.sqrt(RUNS))
    assert ends.std() == pytest.approx(found.deviation, rel=0.03)
    again = draw_ends(found)
    assert (ends == again).all()


def test_no_other_interval_ends_it_sooner() -> None:
    found = forecast(JOB, BUSY)
    for every in (1, found.interval - 1, found.interval + 1, 10 * found.interval):
        assert replace(found, interval=every).seconds >= found.seconds


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_what_helps_keeps_an_interval_that_somebody_fixed(factor: float) -> None:
    """Twice of what two rows change, at the same interval, ends no later than each; another interval is its own row."""
    free = forecast(JOB, BUSY)
    every = max(1, round(free.interval * factor))
    found = forecast(JOB, BUSY, every)
    changes = changes_of(found, every)
    own = {name: after for name, after in changes.items() if name.startswith("saving more")}
    assert all(after.interval == every for name, after in changes.items() if name not in own)
    assert [after.interval for after in own.values()] == [free.interval] * (factor != 1.0)
    assert all(("often" if factor > 1 else "rarely") in name for name in own)
    assert all(after.seconds < found.seconds for after in changes.values())


def test_writing_while_training_waits_less_and_loses_more() -> None:
    behind, waiting = forecast(JOB, operations()), forecast(JOB, operations(asynchronous=False))
    assert behind.segment.saving < waiting.segment.saving
    assert behind.segment.lag > waiting.segment.lag == 0
    assert behind.seconds < waiting.seconds


def test_a_job_that_fails_before_it_restarts_never_ends() -> None:
    with pytest.raises(InfeasibleError, match="never ends: with 3,072 GPUs something fails every"):
        forecast(JOB, operations(mtbf="300 h"))


def test_no_spare_at_all_means_waiting_for_every_repair() -> None:
    found = forecast(JOB, operations(spares=0, repair="1 d"))
    assert found.waiting.chance == 1.0
    assert found.parts["waiting_for_spares"] == pytest.approx(found.failures * 86400)


def test_storage_must_keep_up() -> None:
    slow = operations(storage_write="1 GB/s", mtbf="1000000 h")
    with pytest.raises(InputError, match=r"storage takes 12.6 TiB at 1 GB/s: longer than 10 steps") as caught:
        forecast(JOB, slow, interval=10)
    assert "or more" in caught.value.hint
    assert forecast(JOB, slow).interval * 5.0 >= 13.8e12 / 1e9 - 1


@pytest.mark.parametrize("every", [0, 300_001])
def test_an_interval_beyond_the_job_is_refused(every: int) -> None:
    with pytest.raises(InputError, match="cannot save every"):
        forecast(JOB, operations(), interval=every)


@pytest.mark.parametrize("name", names("operations"))
def test_catalogue_entries_say_where_they_are_from(name: str) -> None:
    one = load_operations(name)
    assert one.name == name
    assert len(one.source) > 40
    assert 0.5 < forecast(JOB, one).goodput < 1


def test_wrong_operations_are_refused() -> None:
    usual = {"mtbf": "50 h", "detection": "1 s", "restart": "1 s", "storage_write": "1 GB/s"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mtbf": "0 h"}, "above zero"),
        ({"mtbf": "-3 h"}, "above zero"),
        ({"storage_write": "0 GB/s"}, "above zero"),
        ({"spares": -1}, "spares"),
        ({"slow_hosts": 1.5}, "slow_hosts"),
        ({"maintenance": {"every": "1 h", "takes": "2 h"}}, "no time is left"),
    ]
    for fields, says in cases:
        with pytest.raises(InputError, match=says):
            OperationsSpec(**usual | fields)
