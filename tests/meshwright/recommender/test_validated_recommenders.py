"""`meshwright validate --recommenders`: text, rows and document show the same figures."""

from __future__ import annotations

import pytest

from cost_models.errors import InputError
from meshwright.verbs.validate import validate_recommenders


def test_every_run_is_predicted_and_scored() -> None:
    found = validate_recommenders()
    assert len(found.rows) == 159
    assert sum(one.runs for one in found.scores) == 151
    assert found.record()["frameworks"][0]["framework"] == "MLPerf HugeCTR"
    text = "\n".join(map(str, found.text))
    assert "8 of 8 caught" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_table_of_others_runs_is_refused(tmp_path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("row_id,gpu\n1,H100\n")
    with pytest.raises(InputError, match="has no column"):
        validate_recommenders(path)
    columns = "row_id,source_cite,model,framework,gpu,num_gpus,global_batch,step_time_s"
    path.write_text(f"{columns}\n1,x,DeepFM,PyTorch,H100,8,64,0.1\n")
    with pytest.raises(InputError, match="nobody says how `PyTorch` shards"):
        validate_recommenders(path)
