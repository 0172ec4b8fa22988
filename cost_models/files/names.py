"""Readings of a name: another spelling, a Hugging Face id, a GPU's name where a cluster belongs."""

from __future__ import annotations

import re

from cost_models.documents import printable
from cost_models.errors import InputError, UnknownNameError, closest_name
from cost_models.files import catalog, read_data
from cost_models.files.local import LOCAL
from cost_models.files.reading import is_file
from cost_models.specs.cluster import ClusterSpec

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FILES = (".yaml", ".yml", ".json")
_OF_NO_SHAPE = re.compile(
    r"^meta-|-(hf|base|chat|it|pt|instruct(-\d+)?|thinking(-\d+)?|v[01]\.\d+|uncased|cased|deduped"
    r"|coder|math|python|fp8|bf16)(?=-|$)"
)
"""Pattern of parts of ids that say how a model was trained, not its shape."""
_ORDER = "write MODEL first, then CLUSTER"
TEMPLATE = "meshwright cluster --template -o my-cluster.yaml"
"""The command that writes a cluster file to fill in."""


def is_hub_id(text: str) -> bool:
    """Whether a text has the form of a Hugging Face id, owner and name, such as `meta-llama/Llama-3.1-70B`."""
    return _HUB_ID.fullmatch(text) is not None and not text.endswith(_FILES)


def known_model(text: str) -> str | None:
    """Catalogue name of the transformer that a text names, in any spelling or as a Hugging Face id; None where
    there is none."""
    return _unique_spelling(text.rpartition("/")[2] if is_hub_id(text) else text, "models")


def known_recommender(text: str) -> str | None:
    """Catalogue name of the recommender that a text names, in any spelling; None where there is none."""
    return _unique_spelling(text, "recommenders")


def means_recommender(text: str) -> bool:
    """Whether a text names a catalogue recommender, or is an unknown name most similar to a recommender's."""
    if known_model(text) or names_a_file(text):
        return False
    if known_recommender(text):
        return True
    recommenders = catalog.names("recommenders")
    return closest_name(text, (*catalog.names("models"), *recommenders)) in recommenders


def known_cluster(text: str) -> str | None:
    """Catalogue name of the cluster that a text names, in any spelling; None where there is none."""
    return _unique_spelling(text, "clusters")


def _unique_spelling(text: str, kind: catalog.Kind) -> str | None:
    """Only catalogue name equal to the text up to case, blanks, dashes and training suffixes such as `-instruct`;
    None where there is none, or several."""
    names = catalog.names(kind)
    if text in names:
        return text
    spelling = _spelling(text)
    matches = [name for name in names if _spelling(name) == spelling]
    return matches[0] if len(matches) == 1 else None


def _spelling(name: str) -> str:
    lower = re.sub(r"[ _-]+", "-", name.strip().lower())
    plain = _OF_NO_SHAPE.sub("", lower).replace("-", "")
    return re.sub("-", "", read_data("names")["names"].get(plain, plain))


def unknown_model(text: str) -> InputError:
    """Error for a text that names no model, with a hint such as the most similar name."""
    if text == "-":
        return InputError("`-` is no model; standard input is called `/dev/stdin`")
    if known_cluster(text):
        return InputError(f"`{printable(text)}` is a cluster, not a model", hint=_ORDER)
    hint = "known names: meshwright catalog models"
    if is_hub_id(text):
        hint = f"for a model on Hugging Face give the folder with its config.json; {hint}"
    name = text.rpartition("/")[2] if is_hub_id(text) else text
    known_names = (*catalog.names("models"), *catalog.names("recommenders"))
    return UnknownNameError("model", printable(text), known_names, like=name, hint=hint)


def unknown_cluster(text: str, gpus: int | None = None) -> InputError:
    """Error for a text that names no cluster, with a hint such as the most similar name; `gpus` is the value of
    `--gpus`, if given."""
    if "+" in text:
        return _unsized_pools(text, gpus)
    if known_model(text) or known_recommender(text):
        return InputError(f"`{printable(text)}` is a model, not a cluster", hint=_ORDER)
    if of_gpu := _clusters_of(text):
        message = f"`{printable(text)}` is a GPU, not a cluster; did you mean `{of_gpu[0]}`?"
        return InputError(message, hint=f"clusters of it: {', '.join(of_gpu)}")
    hint = f"known names: meshwright catalog clusters; for your own: {TEMPLATE}"
    return UnknownNameError("cluster", printable(text), catalog.names("clusters"), hint=hint)


def _clusters_of(text: str) -> list[str]:
    """Names of the catalogue clusters whose GPU's name begins with a text, fastest links first, then most memory."""
    spelling = _spelling(text)
    clusters = (catalog.load_cluster(name) for name in catalog.names("clusters") if name != LOCAL)

    def rank(cluster: ClusterSpec) -> tuple[float, float, bool]:
        other_maker = not cluster.name.startswith(("dgx", "hgx"))
        return -cluster.links.intra_node.bandwidth, -cluster.gpu.memory, other_maker

    matches = (one for one in clusters if spelling[1:] and _spelling(one.gpu.name).startswith(spelling))
    return [cluster.name for cluster in sorted(matches, key=rank)]


def _unsized_pools(text: str, gpus: int | None) -> InputError:
    """Error for a text such as `dgx-a100-80gb+dgx-h100`, which names pools without numbers of GPUs."""
    names = [part.partition(":")[0].strip() for part in text.split("+")]
    pool_gpus = max(1, (gpus or 64 * len(names)) // len(names))
    sized = "+".join(f"{known_cluster(name) or name}:{pool_gpus}" for name in names)
    hint = f"write them with colons, without --gpus: {printable(sized)}"
    return InputError(f"`{printable(text)}` does not say how many GPUs each pool has", hint=hint)


def names_a_file(text: str) -> bool:
    """Whether a text names an existing file or is written like a file name."""
    return is_file(text) or "/" in text or "\\" in text or text.endswith(_FILES)
