"""Base classes and field types of all specs (immutable, strictly typed inputs that users write in files)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ +/-]{0,99}$")]
"""Text of 1 to 100 letters, digits and plain punctuation, safe to print and to use in a file name."""
POOL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,49}$"
"""Regular expression for the name of a pool (a group of equal GPUs in a mixed cluster), which layout notation
contains."""
PositiveInt = Annotated[int, Field(gt=0, le=10**6)]
"""Integer from 1 to a million, such as a number of heads or cores, or the width of a tensor."""
LargeInt = Annotated[int, Field(gt=0, le=10**9)]
"""Integer from 1 to a billion, such as the tokens of a sequence or the entries of a vocabulary."""
MAX_GPUS = 10**7
"""Maximum number of GPUs of a cluster. It is more than exist: a larger number is a typing error, and its
divisors take too long to find."""
MAX_LAYERS = 4096
"""Maximum number of a model's transformer blocks, four times more than any published model has."""
GpuCount = Annotated[int, Field(gt=0, le=MAX_GPUS)]
"""Integer from 1 to `MAX_GPUS`, for counts of devices, of nodes, or of sequences in a batch."""
Overhead = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]
"""Number of seconds from 0 to 60, written without a unit, such as the time to launch a kernel."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""Number from 0 to 1, for a fraction of a whole."""
Factor = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
"""Number from 0 to 100, for bytes per element or a number of copies or passes."""

TUPLE_FROM_LIST = Field(strict=False)
"""Pydantic field for a tuple that also accepts a list, as defaults from files are lists, which strict
validation refuses."""
OMITTED: Any = Field(default=None, exclude_if=lambda value: value is None)
"""Pydantic field that is None by default, and is written to files only if it has another value."""
Efficiency = Field(ge=1e-6, le=1.5, allow_inf_nan=False)
"""Pydantic field for the fitted fraction of a datasheet's rate that a kernel reaches. It may exceed 1, where
the datasheet's rate is too low."""


if TYPE_CHECKING:
    _Model = BaseModel
else:

    class _ReadableErrors(type(BaseModel)):
        """Metaclass of specs that reports wrong constructor arguments as an InputError, in the same sentences
        as errors in files."""

        def __call__(cls, *args: Any, **fields: Any) -> Any:
            """Construct the spec; raise InputError instead of pydantic's ValidationError."""
            try:
                return super().__call__(*args, **fields)
            except ValidationError as error:
                from cost_models.documents import spec_error

                raise spec_error(error, cls) from None

    class _Model(BaseModel, metaclass=_ReadableErrors):
        """Pydantic model with readable errors; type checkers see plain `BaseModel` in its place."""


class _LateSignature:
    """Descriptor for `__signature__` that builds a spec class's pydantic model and signature on first use."""

    def __get__(self, value: Any, spec: type[Any]) -> Any:
        if value is not None:
            raise AttributeError("a value has no signature; its class has")
        spec.model_rebuild()
        return spec.__signature__


class Spec(_Model):
    """Base class of all specs, the pydantic models that users write in files or Python. They are immutable,
    strict (no silent conversion), and without unknown fields.

    Raises:
        InputError: made of values that a field does not take; all problems at once.
    """

    if not TYPE_CHECKING:

        @classmethod
        def __pydantic_init_subclass__(cls, **_: Any) -> None:
            if not cls.__pydantic_complete__:
                cls.__signature__ = _LateSignature()

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
    """Pydantic options of every spec. Validators are built with the first value, and docstrings are read only
    for schemas (`cost_models.files.catalog`), as a command needs few of a hundred specs."""


class CheckedSpec(Spec):
    """Base class of specs with checks across several fields, which subclasses list in `contradictions`."""

    def contradictions(self) -> Mapping[str, object]:
        """Possible error sentences about the spec's fields, each with a value that is true if the error is
        present. The first present error is raised."""
        raise NotImplementedError

    @property
    def contradiction(self) -> str:
        """Error sentence of the first failed check; empty if the fields agree."""
        return next((sentence for sentence, wrong in self.contradictions().items() if wrong), "")

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        """Raise ValueError with the error sentence of the first failed check."""
        if self.contradiction:
            raise ValueError(self.contradiction)
        return self
