"""Loading a recommender and its training job by what the user names: a catalogue name, or a file of ours or others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_models.documents import Document, Key
from cost_models.errors import InputError, Problem
from cost_models.files import catalog
from cost_models.files.amounts import read_samples
from cost_models.files.histograms import tables_of, with_histograms, with_table
from cost_models.files.names import known_model, known_recommender, unknown_model
from cost_models.files.parsing import check_kind, validate
from cost_models.files.reading import is_file, read_document
from cost_models.files.recommender_files import is_foreign_recommender, read_recommender
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.tables import MAX_TABLES
from cost_models.specs.recommender.training import RecommenderTraining


def resolve_recommender(text: str | Document) -> RecommenderSpec:
    """The recommender of a catalogue name, our YAML (`kind: recommender`), or TorchRec's or HugeCTR's JSON; or of what
    such a file holds.

    Raises:
        UnknownNameError: neither a known name nor a file.
        InputError: a file that does not describe one; all problems at once.
    """
    if isinstance(text, Document):
        return _of_document(text, Path())
    if (known := known_recommender(text)) and not is_file(text):
        return catalog.load_recommender(known)
    if not is_file(text):
        if known_model(text):
            raise InputError(
                f"`{text}` is a transformer; a recommender is needed here",
                hint="known names: meshwright catalog models",
            )
        raise unknown_model(text)
    return _of_document(read_document(text), Path(text).parent)


def _of_document(document: Document, folder: Path) -> RecommenderSpec:
    """The recommender that a file holds; `folder` is where histograms that it names lie."""
    if is_foreign_recommender(document):
        return read_recommender(document)
    return validate(with_each_named_once(with_histograms(document, folder)), RecommenderSpec)


def with_each_named_once(document: Document) -> Document:
    """The document with a problem at every class of tables whose name another has."""
    problems, fields = dict(document.problems), document.value
    first: dict[str, Key] = {}
    for key, table in tables_of(document):
        name, count = table.get("name"), table.get("count", 1)
        if not isinstance(name, str) or not isinstance(count, int) or not 0 < count <= MAX_TABLES:
            continue  # the spec says what is wrong with these
        names = [name] if count == 1 else [name, *(f"{name}.{index}" for index in range(count))]
        if twice := next((one for one in names if one in first), None):
            at = (*key, "name")
            other = document.where(first[twice])
            problems[at] = Problem(
                document.where(at), f"two tables are called `{twice}`; the other is {other}"
            )
            fields = with_table(fields, key, {one: table[one] for one in table if one != "name"})
        first |= dict.fromkeys(names, key)
    return replace(document, value=fields, problems=problems)


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
