"""JSON schemas describe what people write, not what is kept inside."""

from __future__ import annotations

import pytest

from cost_models.errors import UnknownNameError
from cost_models.files.catalog import KINDS, json_schema


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_schema_that_knows_its_fields(kind: str) -> None:
    assert set(json_schema(kind)["properties"]) == set(KINDS[kind].model_fields)


def test_what_may_be_left_out_is_not_required() -> None:
    assert json_schema("transformer")["required"] == ["num_layers", "hidden_size", "num_heads", "vocab_size"]
    assert json_schema("cluster")["required"] == ["gpu", "gpus_per_node", "links"]


def test_quantities_are_text_and_a_gpu_may_be_a_name() -> None:
    schema = json_schema("cluster")
    assert schema["$defs"]["LinkSpec"]["properties"]["bandwidth"]["type"] == "string"
    assert {"type": "string"} in schema["properties"]["gpu"]["anyOf"]


def test_unknown_kind() -> None:
    with pytest.raises(UnknownNameError, match="did you mean `cluster`"):
        json_schema("clusters")


def test_fields_say_what_they_are() -> None:
    schema = json_schema("cluster")
    assert schema["properties"]["links"]["description"]
    assert "one direction" in schema["$defs"]["LinkSpec"]["properties"]["bandwidth"]["description"]
