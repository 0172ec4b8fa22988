"""Small things that people type and read: names, counts that divide badly, changes that are rounding."""

from __future__ import annotations

import pytest

from cost_models.documents import Document
from cost_models.files.loading import known_name
from cost_models.flags import flags_of
from cost_models.hugging_face.config import read_config
from meshwright.explorer import ExploreOptions
from meshwright.families.transformer.planned import odd_count_note
from meshwright.render.words import change_words, percent
from meshwright.verbs.forecast import ForecastOptions
from meshwright.verbs.plot import PlotOptions
from meshwright.verbs.report import ReportOptions


@pytest.mark.parametrize("name", ["llama3-405b", "Llama-3-405B", "llama3.1-405b"])
def test_a_size_names_its_release(name: str) -> None:
    assert known_name(name, "models") == "llama3.1-405b"


def test_an_odd_number_of_gpus_gets_a_hint(certificate) -> None:
    assert odd_count_note(72, certificate) == ""
    assert odd_count_note(70, certificate).endswith("--gpus 64 or 72 has more")


def test_rounding_is_no_change() -> None:
    assert change_words(percent, "share", 0.0001, 0.00005) == "same"
    assert change_words(percent, "share", 0.2, 0.25) == "+5.0 pt"
    assert change_words(str, "seconds", 1.0, 17.2) == "17x"
    assert change_words(str, "seconds", 0.0, 1.0) == "new"


@pytest.mark.parametrize(
    ("folder", "name"), [("w", "llama-4x256"), ("Llama-3-8B", "Llama-3-8B"), ("model", "llama-4x256")]
)
def test_a_folder_names_a_model_only_where_it_says_a_size(folder: str, name: str) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 1000,
    }
    document, _ = read_config(Document(source=f"/tmp/{folder}/config.json", value=config))
    assert document.value["name"] == name


@pytest.mark.parametrize("name", ["tokens", "operations"])
def test_a_job_and_its_failures_are_said_alike_in_every_verb(name: str) -> None:
    here = flags_of(ForecastOptions)[name]
    assert [flags_of(one)[name] for one in (ReportOptions, PlotOptions, ExploreOptions)] == [here] * 3
