"""Loading a model by what the user names: a catalogue name, a file of ours, or a Hugging Face config."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cost_models.base import Spec
from cost_models.documents import Document, printable
from cost_models.errors import InputError
from cost_models.families import FAMILIES, RECOMMENDER, TRANSFORMER, Family
from cost_models.files import catalog
from cost_models.files.names import is_hub_id, known_model, means_recommender, names_a_file, unknown_model
from cost_models.files.parsing import validate
from cost_models.files.reading import is_file, is_pipe, read_document
from cost_models.files.recommenders import is_foreign_recommender
from cost_models.specs.transformer import TransformerSpec

if TYPE_CHECKING:
    from cost_models.hugging_face.config import Dropout

M = TypeVar("M")
HUGGING_FACE_FILE = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A transformer specification, with the assumptions made and the dropout found when loading a file."""

    spec: TransformerSpec
    assumptions: tuple[str, ...] = ()
    """Assumed facts that the file does not say, and simplifications of its prices, in words."""
    dropout: Dropout | None = None
    """Dropout of its config, which is no part of the shape."""


def resolve_model(text: str | Document) -> LoadedModel:
    """Load the transformer that a user names by catalogue name, Hugging Face id, YAML file or config.json, or
    that a document describes.

    Raises:
        UnknownNameError: neither a known name nor a file.
        InputError: a file that does not describe a model; all problems at once.
    """
    if isinstance(text, Document):
        return _loaded(validate(text, TransformerSpec))
    if text in catalog.names("models"):
        return _loaded(catalog.load_model(text))
    path = Path(text)
    if is_file(path / HUGGING_FACE_FILE):
        path = path / HUGGING_FACE_FILE
    elif not is_file(path):
        if known := known_model(text):
            return _loaded(catalog.load_model(known), (f"`{printable(text)}` is {known} of the catalogue",))
        if is_hub_id(text) or not names_a_file(text):
            raise unknown_model(text)
    document = read_document(path)
    if isinstance(document.value, dict) and "kind" not in document.value and path.suffix == ".json":
        from cost_models.hugging_face.config import dropout_of, read_config

        fields, assumptions = read_config(document)
        loaded = _loaded(validate(fields, TransformerSpec), assumptions)
        return replace(loaded, dropout=dropout_of(document.value))
    return _loaded(validate(document, TransformerSpec))


def read_once(model: M) -> M | Document:
    """Read the model's file into a `Document` if it is a pipe, which can be read only once; return any other
    model unchanged. Raises InputError where it cannot be read."""
    return read_document(model) if isinstance(model, str) and is_pipe(model) else model


def family_of_model(model: str | Spec | Document) -> Family:
    """Model family (transformer or recommender) of a model given by name, file, document or spec. Of what is no
    known model it is that of the most similar name, else the transformers': their reader reports the error."""
    kind: object = getattr(model, "kind", None)
    if isinstance(model, str) and is_file(model):
        with suppress(InputError):
            model = read_document(model)
    if isinstance(model, str):
        kind = RECOMMENDER if means_recommender(model) else None
    elif isinstance(model, Document):
        fields = model.value if isinstance(model.value, dict) else {}
        kind = RECOMMENDER if is_foreign_recommender(model) else fields.get("kind")
    return FAMILIES.get(str(kind), FAMILIES[TRANSFORMER])


def _loaded(spec: TransformerSpec, assumptions: tuple[str, ...] = ()) -> LoadedModel:
    remarks = []
    if spec.left_out:
        remarks.append(f"a model without {', '.join(spec.left_out)}, for prices; `run` refuses it")
    if spec.not_in_executor:
        remarks.append(f"`run` refuses its {', '.join(spec.not_in_executor)}, which prices know")
    return LoadedModel(spec=spec, assumptions=(*assumptions, *remarks))
