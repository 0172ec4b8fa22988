"""JSON schemas describe what people write, not what is kept inside."""

from __future__ import annotations

import pytest

from cost_models.errors import UnknownNameError
from cost_models.files.catalog import KINDS, json_schema


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_schema_that_knows_its_fields(kind: str) -> None:
    assert set(json_schema(kind)["properties"]) == set(KINDS[kind].model_fields)


def test_quantities_are_text_and_a_gpu_may_be_a_name() -> None:
    schema = json_schema("cluster")
    assert schema["$defs"]["LinkSpec"]["properties"]["bandwidth"]["type"] == "string"
    assert {"type": "string"} in schema["properties"]["gpu"]["anyOf"]


def test_unknown_kind() -> None:
    with pytest.raises(UnknownNameError, match="did you mean `cluster`"):
        json_schema("clusters")
