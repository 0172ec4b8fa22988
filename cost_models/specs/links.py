"""How GPUs reach one another: inside a node and between nodes, or level by level from the GPUs outwards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, RootModel, Tag, model_validator

from cost_models.base import GpuCount, Name, Spec
from cost_models.units import Bandwidth, Seconds, format_bandwidth, parse_bandwidth, parse_seconds, within

Rate = Annotated[Bandwidth, within(parse_bandwidth, "1 KB/s", "100000 TB/s")]
Latency = Annotated[Seconds, within(parse_seconds, "0.001 ns", "10 s")]

MOST_LEVELS = 16
"""Levels of links: with two domains in each of more, there are fewer GPUs on earth."""
_NVLINK = ("nvlink", "nvswitch")


LinkKind = Literal["nvlink", "nvswitch", "pcie", "infiniband", "roce", "ethernet", "xgmi", "shared-memory"]


class LinkSpec(Spec):
    """One kind of link."""

    kind: LinkKind
    bandwidth: Rate
    """Bandwidth per GPU, bytes/s, one direction."""
    latency: Latency
    """Seconds until the first byte arrives, over one hop."""
    mesh: bool = False
    """Whether the bandwidth is the sum of one link to each of the others, so that some of them have only the links to
    one another: two of eight GPUs a seventh of it."""

    def faster(self, factor: float) -> Self:
        """The link with `factor` times the bandwidth."""
        return self.model_copy(update={"bandwidth": self.bandwidth * factor})


class Links(Spec):
    """The links between GPUs: one kind inside a node, one between nodes."""

    intra_node: LinkSpec
    """Link between GPUs of one node."""
    inter_node: LinkSpec | None = None
    """Link between nodes, per GPU. Needed for more than one node."""

    @property
    def farthest(self) -> LinkSpec | None:
        """The link between nodes that are farthest apart."""
        return self.inter_node

    def with_intra_node(self, link: LinkSpec) -> Links:
        """The links with another one inside a node."""
        return self.model_copy(update={"intra_node": link})

    def with_inter_node(self, link: LinkSpec) -> Links:
        """The links with another one between nodes."""
        return self.model_copy(update={"inter_node": link})

    def faster(self, *, intra_node: float = 1.0, inter_node: float = 1.0) -> Links:
        """The links with their bandwidths multiplied by factors."""
        between = self.inter_node and self.inter_node.faster(inter_node)
        return self.model_copy(
            update={"intra_node": self.intra_node.faster(intra_node), "inter_node": between}
        )


class BuildingsSpec(Spec):
    """Several buildings of one network each, and the links between them."""

    nodes: GpuCount
    """Nodes of one building."""
    link: LinkSpec
    """Link between buildings: what one GPU has out of its building while all GPUs of that send."""


class LevelSpec(LinkSpec):
    """One level of links: it joins the domains of the level inside it (the innermost: GPUs) to domains of its own."""

    name: Name
    """Name of the level: pair, socket, tray, node, rack, leaf, spine, building ..."""
    gpus: GpuCount | None = None
    """GPUs of one domain, for levels inside a node."""
    nodes: GpuCount | None = None
    """Nodes of one domain; 1 is the node itself. The last level joins all and may leave it out."""
    sharers: GpuCount | None = None
    """GPUs that share one adapter, where the medium changes. Default: one adapter per GPU."""

    @property
    def link(self) -> LinkSpec:
        """The link alone."""
        return LinkSpec.model_construct(**{name: getattr(self, name) for name in LinkSpec.model_fields})


class LinkLevels(RootModel[tuple[LevelSpec, ...]]):
    """Any number of levels, from the GPUs outwards.

    Levels of one medium are a tree, and who goes farther passes the nearer ones; where the medium changes (NVLink pairs
    on PCIe, a node's NVSwitch and its network) a GPU has another way out.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    root: Annotated[tuple[LevelSpec, ...], Field(strict=False, min_length=1, max_length=MOST_LEVELS)]

    @model_validator(mode="after")
    def _levels_nest(self) -> LinkLevels:
        if problems := list(dict.fromkeys(self._problems())):
            raise ValueError("; ".join(problems))
        return self

    @property
    def inside(self) -> tuple[LevelSpec, ...]:
        """Levels inside a node, the node's own included."""
        return tuple(level for level in self.root if level.gpus is not None or level.nodes == 1)

    @property
    def network(self) -> tuple[LevelSpec, ...]:
        """Levels between nodes."""
        return self.root[len(self.inside) :]

    @property
    def intra_node(self) -> LinkSpec:
        """The link between GPUs of one node that share no level inside it."""
        return self.inside[-1].link

    @property
    def inter_node(self) -> LinkSpec | None:
        """The link between the nearest nodes; None on a single node."""
        return self.network[0].link if self.network else None

    @property
    def farthest(self) -> LinkSpec | None:
        """The link between nodes that are farthest apart; None on a single node."""
        return self.network[-1].link if self.network else None

    def with_intra_node(self, link: LinkSpec) -> LinkLevels:
        """The levels with one link between all GPUs of a node."""
        node = self.inside[-1].model_copy(update=dict(link) | {"sharers": None})
        return LinkLevels((node, *self.network))

    def with_inter_node(self, link: LinkSpec) -> LinkLevels:
        """The levels with one link between all nodes."""
        return LinkLevels((*self.inside, LevelSpec.model_construct(**dict(link), name="network")))

    def faster(self, *, intra_node: float = 1.0, inter_node: float = 1.0) -> LinkLevels:
        """The levels with bandwidths inside a node, and between nodes, multiplied by factors."""
        inside = [level.faster(intra_node) for level in self.inside]
        return LinkLevels.model_construct((*inside, *(level.faster(inter_node) for level in self.network)))

    def under(self, nodes: int) -> LinkLevels:
        """As if all nodes were under the switches that so many of them are under."""
        enough = next(
            (at for at, level in enumerate(self.network) if nodes <= (level.nodes or nodes)),
            len(self.network) - 1,
        )
        last = [level.model_copy(update={"nodes": None}) for level in self.network[enough : enough + 1]]
        return LinkLevels((*self.inside, *self.network[:enough], *last))

    def opens(self, at: int) -> bool:
        """Whether the GPUs are plugged into this level, not the switches of the level inside it."""
        return at == 0 or self._medium(at) != self._medium(at - 1)

    def _medium(self, at: int) -> str:
        kind = self.root[at].kind
        return "network" if at >= len(self.inside) else "nvlink" if kind in _NVLINK else kind

    def _problems(self) -> Iterator[str]:
        """Whatever contradicts itself, in words."""
        names = [level.name for level in self.root]
        for name in names:
            if names.count(name) > 1:
                yield f"two levels are called `{name}`"
        if [level.nodes for level in self.root].count(1) != 1:
            yield "one level is the node: it has `nodes: 1`"
            return
        for level in self.root:
            if level.gpus is not None and level.nodes is not None:
                yield f"level `{level.name}` has `gpus` and `nodes`: inside a node it has `gpus`, else `nodes`"
        for at, (inner, outer) in enumerate(pairwise(self.root)):
            yield from _nesting(inner, outer)
            if not self.opens(at + 1) and outer.bandwidth > inner.bandwidth:
                yield (
                    f"level `{outer.name}` has more bandwidth a GPU, {format_bandwidth(outer.bandwidth)}, than "
                    f"`{inner.name}`, {format_bandwidth(inner.bandwidth)}, which its bytes pass"
                )
        for at, level in enumerate(self.root):
            if level.sharers is not None and (at == 0 or not self.opens(at)):
                why = (
                    "every GPU has a link of its own"
                    if at == 0
                    else "all GPUs below share the links of switches"
                )
                yield f"level `{level.name}` has `sharers`, and {why}: leave it out"
            elif level.sharers and (inner := self.root[at - 1]).gpus and inner.gpus % level.sharers:
                yield (
                    f"`sharers` {level.sharers} of level `{level.name}` do not divide a `{inner.name}` of "
                    f"{inner.gpus} GPUs"
                )


def _nesting(inner: LevelSpec, outer: LevelSpec) -> Iterator[str]:
    """What is wrong with the sizes of two neighbouring levels."""
    if inner.gpus is None and inner.nodes is None:
        yield f"level `{inner.name}` has no size; only the last, which joins all, may leave it out"
    elif outer.gpus is not None and inner.gpus is None:
        yield f"level `{outer.name}` is inside the node and stands after `{inner.name}`: begin at the GPUs"
    else:
        for size, unit in (("gpus", "GPUs"), ("nodes", "nodes")):
            few, many = getattr(inner, size), getattr(outer, size)
            if few is not None and many is not None and (many <= few or many % few):
                yield (
                    f"level `{outer.name}` of {many} {unit} does not hold several whole levels `{inner.name}` of {few}"
                )


def _form(value: Any) -> str:
    return "[levels]" if isinstance(value, list | tuple | LinkLevels) else "[links]"


AnyLinks = Annotated[
    Annotated[Links, Tag("[links]")] | Annotated[LinkLevels, Tag("[levels]")], Discriminator(_form)
]
"""`intra_node` and `inter_node`, or a list of levels."""
