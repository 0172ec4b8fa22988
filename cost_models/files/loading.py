"""Loading of models, clusters and training jobs from what a user writes: a catalogue name in any spelling, a
Hugging Face id or config, a YAML file, flags, and amounts such as `8K` (tokens per sequence), `4M tokens`
(batch), `15T`, `30 days`, `$2.50`.

`K` and `M` of a sequence and of a batch are binary, as context lengths are called: 8K is 8,192. Of tokens to train on
they are decimal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from cost_models.base import MAX_GPUS, Spec
from cost_models.documents import Document, printable
from cost_models.errors import InputError, Problem, UnknownNameError, closest_name, either
from cost_models.families import FAMILIES, RECOMMENDER, TRANSFORMER, Family
from cost_models.files import catalog, read_data
from cost_models.files.catalog import Replacements, load_job, validate
from cost_models.files.local import LOCAL
from cost_models.files.reading import is_file, is_pipe, read_document
from cost_models.specs.cluster import MAX_POOLS, ClusterSpec, MixedCluster
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import LARGEST, SMALLEST, counted, grouped, parse_count, parse_seconds

_LONGEST = 60
"""Maximum length of an amount's text, in characters."""
_NUMBER = r"\d{1,3}(?:,\d{3})+|\d*\.?\d+|\d+\."
_FLAGS = re.ASCII | re.IGNORECASE
_COUNT = re.compile(rf"(-?)({_NUMBER})\s*([km]?)i?\s*(tokens?|sequences?|seqs?)?", _FLAGS)
_TOKENS = re.compile(rf"({_NUMBER})\s*([kmbt]|thousand|million|billion|trillion)?\s*(?:tokens?)?", _FLAGS)
_PERIODS = r"(?P<s>s|secs?|seconds?)|(?P<min>mins?|minutes?)|(?P<h>h|hrs?|hours?)|(?P<d>d|days?)|(?P<week>w|wk|weeks?)"
_DURATION = re.compile(rf"({_NUMBER})\s*(?:{_PERIODS})", _FLAGS)
_HOUR = r"(?:(?:/|per|an?)\s*(?:GPU-?)?(?:h|hr|hour))?"
_PRICE = re.compile(rf"(?:\$|USD)?\s*({_NUMBER})\s*(?:\$|USD|dollars?)?\s*{_HOUR}", _FLAGS)
_POWERS = {"": 0, "k": 1, "m": 2}


def _read_count(noun: str, examples: str, value: Any) -> Any:
    """Parse a text such as `8K` into a whole number of things called `noun`; a value that is not text is
    returned unchanged. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = _full_match(_COUNT, value)
    count = None if match is None else _whole_number(match, 1024)
    if match is None or count is None or not (match[4] or noun).lower().startswith(noun[:5]):
        raise ValueError(f"`{printable(value, _LONGEST)}` is no number of {noun}; write it like {examples}")
    return count


read_sequence = partial(_read_count, "tokens", "`8192` or `8K`")
"""Parse a sequence length in tokens, such as `8192`, `8,192` or `8K`; a value that is not text is returned unchanged.
Raises ValueError."""
read_samples = partial(_read_count, "samples", "`55296` or `64K`")
"""Parse a number of samples per step, such as `55296`, `55,296` or `64K`; a value that is not text is returned
unchanged. Raises ValueError."""


def read_batch(value: Any, sequence: Any) -> Any:
    """Parse the number of sequences per optimizer step from `512` or `4M tokens`; `sequence` is the tokens of
    a sequence, also as text such as `8K`. A value that is not text is returned unchanged.

    `4M tokens` are 4 × 2²⁰ where that fills whole sequences, else 4 × 10⁶.

    Raises:
        ValueError: no amount, an amount without its unit (`4M`), or tokens that fill no whole number of sequences.
    """
    if not isinstance(value, str):
        return value
    match = _full_match(_COUNT, value)
    if match is None:
        excerpt = printable(value, _LONGEST)
        raise ValueError(f"`{excerpt}` is no number of sequences; write it like `512` or `4M tokens`")
    noun = (match[4] or "").lower()
    if noun.startswith("t"):
        return _sequences(match, sequence)
    if match[3] and not noun:
        cure = f"write `{match[0]} tokens` in quotes, or the number of sequences"
        raise ValueError(f"`{match[0]}` counts neither tokens nor sequences; {cure}")
    count = _whole_number(match, 1024)
    if count is None:
        raise ValueError(f"`{match[0]}` is no whole number of sequences")
    return count


def _sequences(match: re.Match[str], sequence: Any) -> int:
    """Number of sequences of `sequence` tokens that the matched number of tokens fills exactly. Raises
    ValueError if the tokens fill no whole number of sequences."""
    with suppress(ValueError):
        sequence = read_sequence(sequence)
    if not isinstance(sequence, int) or sequence <= 0:
        raise ValueError(f"`{match[0]}` can be told in sequences only with their length")
    for tokens in (_whole_number(match, 1024), _whole_number(match, 1000)):
        if tokens is not None and tokens % sequence == 0:
            return tokens // sequence
    fill = float(_plain(match[2])) * 1024 ** _POWERS[match[3].lower()] / sequence
    near = sorted({max(1, math.floor(fill)), math.ceil(fill)})
    message = f"`{match[0]}` are no whole number of sequences of {grouped(sequence)} tokens"
    raise ValueError(f"{message}; {' or '.join(map(grouped, near))} sequences are near")


def read_tokens(value: str | float) -> float:
    """Parse a number of training tokens, such as `15T`, `300 billion` or `1.4e12`. Raises ValueError."""
    match = _full_match(_TOKENS, str(value))
    if match is None:
        return parse_count(printable(str(value), _LONGEST))
    return parse_count(_plain(match[1]) + (match[2] or "")[:1].upper())


def read_duration(text: str) -> float:
    """Parse a duration such as `30d`, `30 days` or `2 weeks` into seconds. Raises ValueError."""
    match = _full_match(_DURATION, text)
    if match is None:
        raise ValueError(f"`{printable(text, _LONGEST)}` is not a duration; write it like `30d` or `36h`")
    number, unit = _plain(match[1]), match.lastgroup
    return parse_seconds(f"{7 * float(number)} d" if unit == "week" else f"{number} {unit}")


def read_price(value: str | float) -> float:
    """Parse a price such as `2.5`, `$2.50` or `2.50 USD/h` into dollars per GPU-hour. Raises ValueError."""
    match = _full_match(_PRICE, str(value))
    try:
        price = float(value if match is None else _plain(match[1]))
    except ValueError:
        excerpt = printable(str(value), _LONGEST)
        raise ValueError(f"`{excerpt}` is no price in dollars; write it like `2.50`") from None
    if not SMALLEST <= price <= LARGEST:
        complaint = "must be a finite number" if price > LARGEST else "must be above zero"
        raise ValueError(f"{complaint}, not `{price:g}`")
    return price


def _full_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Match a pattern against the entire text without surrounding blanks; None if it does not match or the
    text is too long."""
    return pattern.fullmatch(text.strip()) if len(text) <= _LONGEST else None


def _plain(number: str) -> str:
    """Remove the commas between thousands from a number's text."""
    return number.replace(",", "")


def _whole_number(match: re.Match[str], kilo: int) -> int | None:
    """Value of a matched number and unit as an integer, with K for `kilo` and M for its square; None if it is
    not an integer."""
    number, unit = match[1] + _plain(match[2]), int(kilo ** _POWERS[match[3].lower()])
    if _plain(match[2]).isdecimal():
        return int(number) * unit
    value = float(number) * unit
    return int(value) if value.is_integer() else None


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FILES = (".yaml", ".yml", ".json")
_TRAINED = r"hf|base|chat|it|pt|instruct(-\d+)?|thinking(-\d+)?|v[01]\.\d+|uncased|cased|deduped"
_DATA_OR_FORMAT = r"coder|math|python|fp8|bf16|int[48]|awq|gguf|gptq|bnb-[48]bit|unsloth"
_OF_NO_SHAPE = re.compile(rf"^meta-|-({_TRAINED}|{_DATA_OR_FORMAT})(?=-|$)")
"""Pattern of parts of ids that say how a model was trained, not its shape."""
_ORDER = "write MODEL first, then CLUSTER"
TEMPLATE = "meshwright cluster --template -o my-cluster.yaml"
"""The command that writes a cluster file to fill in."""


def is_hub_id(text: str) -> bool:
    """Whether a text has the form of a Hugging Face id, owner and name, such as `meta-llama/Llama-3.1-70B`."""
    return _HUB_ID.fullmatch(text) is not None and not text.endswith(_FILES)


def known_name(text: str, kind: catalog.Kind) -> str | None:
    """Catalogue name (of the given kind) that a text stands for, whatever its case, blanks, dashes and
    training suffixes such as `-instruct`. For a model, the text may also be a Hugging Face id. None if no
    name or several match."""
    text = text.rpartition("/")[2] if kind == "models" and is_hub_id(text) else text
    names, spelling = catalog.names(kind), _spelling(text)
    matches = [text] if text in names else [name for name in names if _spelling(name) == spelling]
    return matches[0] if len(matches) == 1 else None


def _spelling(name: str) -> str:
    """A name in the form in which names are compared: lower case, without dashes, blanks and training
    suffixes."""
    plain = _OF_NO_SHAPE.sub("", re.sub(r"[ _-]+", "-", name.strip().lower())).replace("-", "")
    return str(read_data("names")["names"].get(plain, plain)).replace("-", "")


def unknown_model(text: str) -> InputError:
    """Error for a text that names no model, with a hint such as the most similar known name."""
    if text == "-":
        return InputError("`-` is no model; standard input is called `/dev/stdin`")
    if known_name(text, "clusters"):
        return InputError(f"`{printable(text)}` is a cluster, not a model", hint=_ORDER)
    name, hint = text, "`meshwright catalog models` lists known names"
    if is_hub_id(text):
        name = _OF_NO_SHAPE.sub("", text.rpartition("/")[2].lower())
        hint = f"for a model on Hugging Face give the folder with its config.json; {hint}"
    known_names = (*catalog.names("models"), *catalog.names("recommenders"))
    return UnknownNameError("model", printable(text), known_names, like=name, hint=hint)


def _unknown_cluster(text: str, gpus: int | None = None) -> InputError:
    """Error for a text that names no cluster, with a hint such as the most similar known name; `gpus` is the
    value of `--gpus`, if given."""
    if "+" in text:
        names = [part.partition(":")[0].strip() for part in text.split("+")]
        pool_gpus = max(1, (gpus or 64 * len(names)) // len(names))
        pools = "+".join(f"{known_name(name, 'clusters') or name}:{pool_gpus}" for name in names)
        hint = f"write them with colons, without --gpus: {printable(pools)}"
        return InputError(f"`{printable(text)}` does not say how many GPUs each pool has", hint=hint)
    if known_name(text, "models") or known_name(text, "recommenders"):
        return InputError(f"`{printable(text)}` is a model, not a cluster", hint=_ORDER)
    spelling = _spelling(text)
    clusters = (catalog.load_cluster(name) for name in catalog.names("clusters") if name != LOCAL)
    of_gpu = [one for one in clusters if spelling[1:] and _spelling(one.gpu.name).startswith(spelling)]
    if by_speed := [cluster.name for cluster in sorted(of_gpu, key=_speed_rank)]:
        message = f"`{printable(text)}` is a GPU, not a cluster; did you mean `{by_speed[0]}`?"
        return InputError(message, hint=f"clusters of it: {', '.join(by_speed)}")
    hint = f"`meshwright catalog clusters` lists known names; for your own: {TEMPLATE}"
    return UnknownNameError("cluster", printable(text), catalog.names("clusters"), hint=hint)


def _speed_rank(cluster: ClusterSpec) -> tuple[float, float, bool]:
    """Sort key by which clusters with the fastest links come first, then those with most memory, then NVIDIA's."""
    other_maker = not cluster.name.startswith(("dgx", "hgx"))
    return -cluster.links.intra_node.bandwidth, -cluster.gpu.memory, other_maker


def names_a_file(text: str) -> bool:
    """Whether a text names an existing file or is written like a file name."""
    return is_file(text) or "/" in text or "\\" in text or text.endswith(_FILES)


_POOLS = re.compile(r"[^:+]+:[0-9]{1,9}(\+[^:+]+:[0-9]{1,9})+", re.ASCII)
"""Pattern of several clusters with their numbers of GPUs: `dgx-a100-80gb:512+dgx-h100:512`."""
_SIZED = re.compile(r"([^:+]+):([0-9]{1,9})", re.ASCII)
"""Pattern of one cluster with its number of GPUs: `dgx-h100:128`."""


def resolve_cluster(text: str, gpus: int | None = None) -> ClusterSpec | MixedCluster:
    """Load the cluster that a user names, resized to `gpus` GPUs. The text is a catalogue name, a YAML file,
    `name:GPUs`, or several pools `name:GPUs+name:GPUs`.

    Catalogue clusters have any number of nodes (one unless `gpus` says more), `local` any number of
    processes; a file has the nodes it states and no more. `gpus` is whole nodes, or part of one. A cluster of several
    pools has the sizes it states.

    Raises:
        UnknownNameError: neither a known name nor a file.
        InputError: a file with problems, or a number of GPUs that this cluster cannot have.
    """
    if gpus is not None and gpus <= 0:
        raise InputError(f"a cluster of {gpus} GPUs cannot train anything", hint="--gpus must be above zero")
    _require_existing(gpus or 0)
    if text == LOCAL:
        return catalog.local_cluster(gpus)
    if (sizes := _SIZED.fullmatch(text)) and not is_file(text):
        size = int(sizes[2])
        if gpus not in (None, size):
            message = f"`{printable(text)}` has {counted(size, 'GPU')}, --gpus says {grouped(gpus or 0)}"
            raise InputError(message, hint="say it once")
        return resolve_cluster(sizes[1], size)
    if (catalogue_name := known_name(text, "clusters")) and not is_file(text):
        cluster = catalog.load_cluster(catalogue_name)
        return sized(cluster, gpus or cluster.num_gpus)
    has_pools = _POOLS.fullmatch(text) is not None
    if not has_pools and not names_a_file(text):
        raise _unknown_cluster(text, gpus)
    stated = _pools_of_text(text) if has_pools else _of_file(text)
    if isinstance(stated, MixedCluster):
        if gpus in (None, stated.num_gpus):
            return stated
        hint = "size the pools: `nodes:` in the file, or `dgx-a100-80gb:512+dgx-h100:512`"
        message = f"--gpus {gpus} leaves open which pools of `{stated.name}` they come from"
        raise InputError(message, hint=hint)
    if gpus is not None and gpus > stated.num_gpus:
        hint = f"--gpus {stated.num_gpus} is all of it; `nodes:` in {text} says how many there are"
        message = f"{gpus} GPUs are more than cluster `{stated.name}` has, {stated.num_gpus}"
        raise InputError(message, hint=hint)
    return sized(stated, gpus or stated.num_gpus)


def _of_file(path: str) -> ClusterSpec | MixedCluster:
    """Load a cluster, or a cluster of several pools, from a YAML file. The hint of an InputError says how to
    get a file that loads."""
    try:
        document = read_document(path)
        if isinstance(document.value, dict) and "pools" in document.value:
            listed = document.value["pools"] if isinstance(document.value["pools"], list) else []
            gpus: Replacements = {("pools", at, "gpu"): catalog.gpu_fields for at in range(len(listed))}
            mixed = validate(document, MixedCluster, gpus)
            pools = tuple(_with_profile_beside(pool, path) for pool in mixed.pools)
            return mixed.model_copy(update={"pools": pools})
        return _with_profile_beside(validate(document, ClusterSpec, catalog.GPU_BY_NAME), path)
    except InputError as error:
        error.hint = error.hint or f"a file that loads, to start from: {TEMPLATE}"
        raise


def _pools_of_text(text: str) -> MixedCluster:
    """Build a cluster of several pools from a text such as `dgx-a100-80gb:512+dgx-h100:512`. Raises
    InputError with every wrong part."""
    pools: list[ClusterSpec] = []
    problems: list[Problem] = []
    parts = text.split("+")
    if len(parts) > MAX_POOLS:
        raise InputError(f"`{printable(text)}` has {len(parts):,} pools; {MAX_POOLS} are the most")
    for part in parts:
        name, _, size = part.rpartition(":")
        try:
            pool = resolve_cluster(name, int(size))
            if isinstance(pool, MixedCluster):
                raise InputError("a pool is a cluster of one GPU")
        except InputError as error:
            problems.append(Problem(printable(part), error.headline))
            continue
        namesakes = sum(pool.name in (known.name, known.name.rpartition(".")[0]) for known in pools)
        name = f"{pool.name}.{namesakes + 1}" if namesakes else pool.name
        pools.append(pool.model_copy(update={"name": name}))
    if problems:
        raise InputError(f"`{printable(text)}` is no cluster", problems=problems)
    fields: dict[str, Any] = {"name": printable("+".join(pool.name for pool in pools), limit=90)}
    fields["pools"] = [pool.model_dump(mode="json") for pool in pools]
    return validate(Document(source=f"`{printable(text)}`", value=fields), MixedCluster)


def _with_profile_beside(cluster: ClusterSpec, path: str) -> ClusterSpec:
    """Copy of a cluster in which a relative path of a hardware profile starts at the folder of the cluster
    file."""
    if cluster.profile and (profile := Path(path).parent / cluster.profile).is_file():
        return cluster.model_copy(update={"profile": str(profile)})
    return cluster


def _require_existing(gpus: int) -> None:
    """Raise InputError if `gpus` is more than `MAX_GPUS`, the number of GPUs in the world."""
    if gpus > MAX_GPUS:
        raise InputError(f"{gpus:,} GPUs are more than there are", hint=f"{MAX_GPUS:,} are the most")


def sized(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    """Resize a cluster to `gpus` GPUs, in full nodes or a part of one node. Raises InputError if that is
    impossible."""
    _require_existing(gpus)
    per_node = cluster.gpus_per_node
    if gpus < per_node:
        return cluster.model_copy(update={"nodes": 1, "gpus_per_node": gpus})
    nodes, remainder = divmod(gpus, per_node)
    if remainder:
        message = f"{gpus} GPUs are no whole number of `{cluster.name}` nodes, which have {per_node} each"
        counts = (nodes, nodes + 1) if cluster.links.inter_node else (nodes,)
        smaller = (name for name in catalog.names("clusters") if name.startswith(f"{cluster.name}-"))
        fitting = (name for name in smaller if gpus % catalog.load_cluster(name).gpus_per_node == 0)
        hints = [f"--gpus {count * per_node}" for count in counts]
        raise InputError(message, hint=either([*hints, *(f"`{name}`" for name in islice(fitting, 1))]))
    if nodes > 1 and cluster.links.inter_node is None:
        message = f"`{cluster.name}` has no network between nodes, so it ends at {counted(per_node, 'GPU')}"
        raise InputError(message, hint="describe yours in a file with `links.inter_node`")
    if odd := cluster.building_problem(nodes):
        raise InputError(f"{grouped(gpus)} GPUs of `{cluster.name}` leave a building half full: {odd}")
    return cluster.model_copy(update={"nodes": nodes})


def resolve_training(path: str | None, **overrides: Any) -> TrainingSpec:
    """Build a training job from a YAML file, command-line flags, or both. The file has `kind: training`; a flag
    that is None was not given.

    Both may say `8K`, `4M tokens` and `15T`.

    Raises:
        InputError: all problems of file and flags at once.
    """

    def readers(fields: Mapping[str, Any]) -> Replacements:
        """Functions that parse the text of each field, such as `8K` of `sequence_length`, by field."""
        return {
            **dict.fromkeys((("sequence_length",), ("target_length",)), read_sequence),
            ("global_batch",): lambda text: read_batch(text, fields.get("sequence_length")),
            ("tokens",): lambda text: read_tokens(text) if isinstance(text, str) else text,
        }

    return load_job(path, TrainingSpec, overrides, readers)


M = TypeVar("M")
HUGGING_FACE_FILE = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A transformer's spec with the assumptions made and the dropout found when its file was read."""

    spec: TransformerSpec
    assumptions: tuple[str, ...] = ()
    """Assumed facts that the file does not say, and simplifications of its prices, in words."""
    dropout: tuple[float, str] | None = None
    """Dropout probability in a Hugging Face config, and the key that states it; None without one."""


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
        if known := known_name(text, "models"):
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
    """Read a model's file into a `Document` if it is a pipe, which can be read only once; any other model is
    returned unchanged."""
    return read_document(model) if isinstance(model, str) and is_pipe(model) else model


def _means_recommender(text: str) -> bool:
    """Whether a text names a catalogue recommender, or is an unknown name that is most similar to a
    recommender's."""
    if known_name(text, "models") or names_a_file(text):
        return False
    recommenders = catalog.names("recommenders")
    similar = closest_name(text, (*catalog.names("models"), *recommenders))
    return known_name(text, "recommenders") is not None or similar in recommenders


def is_foreign_recommender(document: Document) -> bool:
    """Whether a document is a recommender in TorchRec's or HugeCTR's format."""
    value = document.value
    is_config = isinstance(value, dict) and not {"slot_size_array", "tables"}.isdisjoint(value)
    return isinstance(value, list) or (is_config and "kind" not in value)


def family_of_model(model: str | Spec | Document) -> Family:
    """Model family (transformer or recommender) of a model given by name, file, document or spec. An unknown
    name has the family of the most similar name. Anything else counts as a transformer, whose reader reports
    the error."""
    kind: object = getattr(model, "kind", None)
    if isinstance(model, str) and is_file(model):
        with suppress(InputError):
            model = read_document(model)
    if isinstance(model, str):
        kind = RECOMMENDER if _means_recommender(model) else None
    elif isinstance(model, Document):
        fields = model.value if isinstance(model.value, dict) else {}
        kind = RECOMMENDER if is_foreign_recommender(model) else fields.get("kind")
    return FAMILIES.get(str(kind), FAMILIES[TRANSFORMER])


def _loaded(spec: TransformerSpec, assumptions: tuple[str, ...] = ()) -> LoadedModel:
    """Loaded model for a spec, whose assumptions also name parts that are missing or that the executor cannot
    run."""
    remarks = []
    if spec.left_out:
        remarks.append(f"a model without {', '.join(spec.left_out)}, for prices; `run` refuses it")
    if spec.not_in_executor:
        remarks.append(f"`run` refuses its {', '.join(spec.not_in_executor)}, which prices know")
    return LoadedModel(spec=spec, assumptions=(*assumptions, *remarks))
