"""Matrix products of a model's blocks in fp8: torchao's linear layers, split over tensor ranks.

Each row of an operand has a scale of its own, a power of two (torchao's recipe `rowwise`). Such a scale moves a row
into the range of e4m3 without rounding anything, so a row's values do not depend on what lies in the other rows, and
hardly on where a row is cut: only what is 2^-14 of the row's largest value and less is rounded otherwise. Tensor ranks
therefore scale their own parts of a row, and no scale has to be agreed on.

Importing this file imports torchao.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from torch import Tensor
from torch.distributed.tensor import DTensor

from executor.mesh import Ways, product_of_shards
from executor.models.transformer import Transformer

logging.disable(
    logging.WARNING
)  # torchao's, about kernels that it cannot load here and training does not use
try:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear, matmul_with_hp_or_float8_args
finally:
    logging.disable(logging.NOTSET)

RECIPE = "rowwise"


def multiply_in_fp8(model: Transformer, *, emulate: bool) -> None:
    """Replace every projection and dense MLP in a model slice's blocks by fp8 layers, in place, before any is split.

    `emulate` rounds operands to fp8 and multiplies them in fp32, on any device.
    """
    config = replace(Float8LinearConfig.from_recipe_name(RECIPE), emulate=emulate)
    for block in model.blocks.values():
        convert_to_float8_training(block, config=config)
        for module in block.modules():
            if isinstance(module, Float8Linear):
                module.__class__ = _LocalFloat8Linear


class _LocalFloat8Linear(Float8Linear):  # type: ignore[misc]  # torchao has no types
    """fp8 linear layer that computes with this rank's shards alone.

    DTensor would have the ranks agree on a scale for every row that is split over them.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Product (…, in) → (…, out), sharded as input and weight imply."""
        if not isinstance(self.weight, DTensor):
            out: Tensor = super().forward(input)
            return out
        weight = self.weight

        def multiply(shard: Tensor, ways: Ways) -> Tensor:
            """Multiply this rank's shards in fp8."""
            product: Tensor = matmul_with_hp_or_float8_args.apply(
                shard,
                weight.to_local(grad_placements=[ways.weight_gradient]).t(),
                self.linear_mm_config,
                self.config,
            )
            return product

        (placement,) = weight.placements
        return product_of_shards(input, weight.device_mesh, placement, self.bias, multiply)
