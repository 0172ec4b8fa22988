"""Dense network of a recommender: layers, parameters, products, and seconds for each GPU's samples.

    bottom MLP     dense features → D
    dot            F = T + 1 vectors of D: F(F−1)/2 products beside the bottom's output (Naumov et al. 2019)
    dcn-v2         x' = x0 ∘ (U V x + b) + x, rank r, on x0 of F·D numbers (Wang et al. 2021)
    top MLP        what the interaction gives → outputs

A layer's backward pass has two products like its forward one. Element-wise work moves bytes: what products wrote is
read and written again for bias and activation, and gradients the same. Weight gradients are all-reduced.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cost_models.compute.gemm import Device, gemm_seconds, rated_device, require_rate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.model import RecommenderSpec

_PADDED = 8
"""Number to whose multiple layer widths are padded, as 13 features to 16: NVIDIA's guide asks for it in 16
bits."""


Layers = tuple[tuple[int, int], ...]
"""(inputs, outputs) of each weighted matrix product."""


class DenseNetwork(NamedTuple):
    """Dense network of a recommender: layers as (inputs, outputs), and FLOPs, parameters and activations of
    one sample."""

    model: RecommenderSpec
    bottom: Layers
    """Layers of the bottom MLP."""
    cross: Layers
    """Products of the `dcn-v2` interaction; empty for other kinds."""
    top: Layers
    """Layers of the top MLP."""
    vectors: float
    """Number F of vectors that the `dot` interaction multiplies pairwise."""
    joined: int
    """Number of elements of the tables' vectors and the bottom MLP's output, concatenated, for one sample."""
    top_input: int
    """Number of inputs of the top MLP."""

    @property
    def layers(self) -> Layers:
        """All weighted matrix products of bottom MLP, interaction and top MLP, as (inputs, outputs)."""
        return (*self.bottom, *self.cross, *self.top)

    @property
    def parameters(self) -> int:
        """Number of weights and biases of the dense network."""
        biases = sum(out for _, out in (*self.bottom, *self.top)) + sum(out for _, out in self.cross[1::2])
        return sum(inputs * out for inputs, out in self.layers) + biases

    @property
    def flops(self) -> float:
        """FLOPs of one sample, forward and backward: three products a layer, less the gradient of the input
        features."""
        first = 2.0 * self.bottom[0][0] * self.bottom[0][1] if self.bottom else 0.0
        is_dot = self.model.interaction.kind == "dot"
        dot = 2.0 * self.vectors**2 * self.model.tables[0].width if is_dot else 0.0
        return 3 * (sum(2.0 * i * o for i, o in self.layers) + dot) - first

    @property
    def activations(self) -> float:
        """Number of activation elements of one sample: all layer outputs and the inputs of interaction and
        top MLP."""
        crossed = sum(out for _, out in self.cross)
        return self.joined + crossed + self.top_input + sum(out for _, out in (*self.bottom, *self.top))

    @property
    def alive(self) -> float:
        """Peak number of live activation elements of one sample, if autograd frees tensors after their last use; 0
        without interaction.

        The peak is at the end of the forward pass or, with `dot`, in its backward pass, with the gradients of its
        vectors from both sides and of its products. A cross layer keeps the outputs of its products and its sum; its
        backward pass has the gradients of its output, of the product's operand, and of the first input.
        """
        bottom, top = (sum(out for _, out in layers) for layers in (self.bottom, self.top))
        if self.model.interaction.kind == "dcn-v2":
            layers, rank = self.model.interaction.layers, self.model.interaction.rank
            return float(bottom + top + self.joined + layers * (2 * self.joined + rank) + 3 * self.joined)
        if self.model.interaction.kind != "dot":
            return 0.0
        return bottom + self.joined + self.top_input + max(float(top), 2.0 * self.joined + self.vectors**2)


def dense_network(model: RecommenderSpec) -> DenseNetwork:
    """Layers of a recommender's dense network, from the widths of its tables and MLPs."""
    kind, rank, tables = model.interaction.kind, model.interaction.rank, model.tables
    dense = (model.bottom_mlp or (model.dense_features,))[-1]
    vectors = sum(one.outputs * one.count for one in tables) + (1.0 if model.bottom_mlp else 0.0)
    joined = int(sum(one.outputs * one.width * one.count for one in tables)) + dense
    cross = ((joined, rank), (rank, joined)) * (model.interaction.layers if kind == "dcn-v2" else 0)
    top_input = int(vectors * (vectors - 1) / 2) + dense if kind == "dot" else joined
    bottom = tuple(pairwise((model.dense_features, *model.bottom_mlp))) if model.dense_features else ()
    top = tuple(pairwise((top_input, *model.top_mlp)))
    return DenseNetwork(model, bottom, cross, top, vectors, joined, top_input)


class DenseSeconds(NamedTuple):
    """Seconds per step of one GPU on the dense network for its samples, by part."""

    bottom_forward: float
    bottom_backward: float
    interaction_and_top: float
    """Seconds of interaction and top network forward and backward (gradients of their inputs only), with copies of
    the interaction's inputs."""
    weight_gradients: float
    """Seconds of the weight gradients of interaction and top network."""
    update: float
    forward: float
    """Seconds of the forward pass of all networks, without gradients."""


def dense_seconds(question: RecommenderQuestion) -> DenseSeconds:
    """Seconds per step of each GPU on the dense network, by part."""
    network, device = dense_network(question.model), dense_device(question)
    samples, facts, dot = question.samples, question.facts, 0.0

    def chain(layers: Layers, *, first: bool = False) -> tuple[float, float, float]:
        """Seconds of a chain of layers: forward pass, gradients of inputs, gradients of weights. With `first`
        no gradient of the chain's input is needed."""
        forward = backward = weights = 0.0
        for index, (inputs, out) in enumerate(layers):
            forward += _product(samples, out, inputs, device)
            forward += _stream(samples * out * facts.forward_passes, device)
            weights += _product(inputs, out, samples, device, over_rows=True)
            backward += _stream(samples * out * facts.backward_passes, device)
            if not (first and index == 0):
                backward += _product(samples, inputs, out, device)
        return forward, backward, weights

    bottom, cross, top = chain(network.bottom, first=True), chain(network.cross), chain(network.top)
    if network.model.interaction.kind == "dot":  # pairwise products, forward and backward, bound by memory
        dot = 3 * _stream(samples * network.joined, device) + 4 * _stream(samples * network.top_input, device)
    copies = _stream(facts.interaction_passes * samples * network.joined, device)
    interaction_and_top = copies + dot + cross[0] + cross[1] + (top[0] + top[1])
    update = device.profile.kernel_seconds + 2 * dense_state_bytes(question) / device.optimizer_rate
    forward, weights = bottom[0] + cross[0] + top[0] + (copies + dot) / 3, cross[2] + top[2]
    return DenseSeconds(bottom[0], bottom[1] + bottom[2], interaction_and_top, weights, update, forward)


def _product(m: float, n: float, k: float, device: Device, *, over_rows: bool = False) -> float:
    """Seconds of one matrix product (m, k) × (k, n), with sizes padded as libraries pad them for tensor cores."""
    rows, columns, inner = (np.ceil(np.array(float(size)) / _PADDED) * _PADDED for size in (m, n, k))
    return float(gemm_seconds(rows, columns, inner, device, over_rows=over_rows))


def _stream(elements: float, device: Device) -> float:
    """Seconds of a kernel that moves `elements` elements through device memory."""
    return device.profile.kernel_seconds + elements * device.element_bytes / device.memory_rate


def dense_state_bytes(question: RecommenderQuestion) -> float:
    """Bytes of the dense network's weights, gradients and optimizer states, as the stack keeps them."""
    bytes_per_parameter = question.facts.dense_state_bytes + question.training.dense_state_bytes
    return dense_network(question.model).parameters * bytes_per_parameter


def dense_device(question: RecommenderQuestion) -> Device:
    """Rates of the GPU for the dense network's matrix products.

    Raises:
        InputError: it has no matrix rate in the training precision.
    """
    gpu, training, profile = question.cluster.gpu, question.training, question.profile
    multiplies_tf32 = training.precision == "fp32" and question.facts.tf32 and "tf32" in gpu.peak
    require_rate(gpu, precision := "tf32" if multiplies_tf32 else training.precision)
    device = rated_device(gpu, profile, precision, training.dense_bytes, question.cluster.gpu_watts)
    return replace(device, tensor_cores=precision != "fp32")
