"""The ids that people type most are models of the catalogue, with as many parameters as their checkpoints have.

`hub_names.csv`: id; name in the catalogue; parameters as the headers of the checkpoint state them (OLMo: and the gains
of its norms, which have none; MiniMax-M2 and Moonlight without their routers' biases), once a model.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cost_models.files.catalog import load_model
from cost_models.files.loading import known_name
from cost_models.operators.parameters import total_parameters

ROWS = [*csv.DictReader(Path(__file__).with_name("hub_names.csv").read_text(encoding="utf-8").splitlines())]


def test_ids_that_people_type_name_models_of_the_catalogue() -> None:
    assert len(ROWS) >= 200
    assert {row["id"]: known_name(row["id"], "models") for row in ROWS} == {r["id"]: r["model"] for r in ROWS}


@pytest.mark.parametrize("row", [row for row in ROWS if row["parameters"]], ids=lambda row: row["model"])
def test_models_have_the_parameters_of_their_checkpoints(row: dict[str, str]) -> None:
    assert total_parameters(load_model(row["model"])) == int(row["parameters"])
