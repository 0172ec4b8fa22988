"""Training jobs of recommenders without their sharding: batch, precisions and optimizers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cost_models.base import LargeInt, Spec
from cost_models.specs.cluster import FULL, Precision
from cost_models.units import LARGEST

TableOptimizer = Literal["sgd", "rowwise-adagrad", "adagrad", "adam"]
TableDtype = Literal["fp32", "fp16", "bf16"]
ELEMENT_BYTES: dict[str, float] = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}


class RecommenderTraining(Spec):
    """Training job of a recommender with batch, precisions and optimizers, without the sharding."""

    kind: Literal["recommender-training"] = "recommender-training"
    global_batch: LargeInt
    """Samples per optimizer step, B."""
    precision: Precision = "bf16"
    """Type of the dense network's products."""
    table_dtype: TableDtype = "fp32"
    """Type of table elements in memory."""
    exchange_dtype: TableDtype | None = None
    """Type of exchanged vectors and gradients; None: that of the dense network."""
    optimizer: TableOptimizer = "sgd"
    """Optimizer of the tables; it updates only rows that a batch uses."""
    dense_optimizer: Literal["sgd", "adagrad", "adam"] = "sgd"
    """Optimizer of the dense network."""
    samples: Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)] | None = None
    """Samples to train on, from which the duration follows."""

    @property
    def dense_bytes(self) -> float:
        """Bytes per element of the operands of matrix products in the dense network."""
        return 4.0 if self.precision in FULL else 2.0

    @property
    def exchange_bytes(self) -> float:
        """Bytes per element of the vectors and gradients exchanged between GPUs."""
        return ELEMENT_BYTES[self.exchange_dtype] if self.exchange_dtype else self.dense_bytes

    @property
    def dense_state_bytes(self) -> float:
        """Bytes of optimizer state per parameter of the dense network: 0 (SGD), 4 (Adagrad, a sum of squares)
        or 8 (Adam, two moments)."""
        return {"sgd": 0.0, "adagrad": 4.0, "adam": 8.0}[self.dense_optimizer]

    @property
    def table_bytes(self) -> float:
        """Bytes per element of an embedding table in memory."""
        return ELEMENT_BYTES[self.table_dtype]
