"""Loading a recommender and its training job by what the user names: a catalogue name, or a file of ours or others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_models.documents import Document, Key
from cost_models.files import catalog
from cost_models.files.amounts import read_samples
from cost_models.files.histograms import with_histograms
from cost_models.files.names import known_recommender, unknown_model
from cost_models.files.parsing import check_kind, validate
from cost_models.files.reading import is_file, read_document
from cost_models.files.recommender_files import is_foreign_recommender, read_recommender
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining


def resolve_recommender(text: str) -> RecommenderSpec:
    """The recommender of a catalogue name, our YAML (`kind: recommender`), or TorchRec's or HugeCTR's JSON.

    Raises:
        UnknownNameError: neither a known name nor a file.
        InputError: a file that does not describe one; all problems at once.
    """
    if (known := known_recommender(text)) and not is_file(Path(text)):
        return catalog.load_recommender(known)
    if not is_file(Path(text)):
        raise unknown_model(text)
    document = read_document(text)
    if is_foreign_recommender(document):
        return read_recommender(document)
    histograms = with_histograms(Path(text).parent)
    return validate(document, RecommenderSpec, replace={"tables": histograms, "wide": histograms})


def resolve_recommender_training(path: str | None, **said: Any) -> RecommenderTraining:
    """The training job from a YAML file (`kind: recommender-training`), flags, or both; None was not said.

    Raises:
        InputError: all problems of file and flags at once.
    """
    given = {name: value for name, value in said.items() if value is not None}
    flags: dict[Key, str] = {
        (name,): "--" + name.replace("_", "-") for name in RecommenderTraining.model_fields
    }
    if path is None:
        document = Document(source="the training options", value=given, flags=flags)
    else:
        document = read_document(path)
        check_kind(document, RecommenderTraining)
        own = {key: flag for key, flag in flags.items() if key[0] in given}
        document = replace(document, value=document.value | given, flags=own)
    return validate(document, RecommenderTraining, replace={"global_batch": read_samples})
