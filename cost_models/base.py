"""Base of all values that users write: frozen, strict, without unknown fields, converted from and to text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ +/-]{0,99}$")]
"""A name safe to print and to use in a file name."""
POOL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,49}$"
"""Pattern of a pool's name, which must fit into the notation of a layout."""
PositiveInt = Annotated[int, Field(gt=0, le=10**6)]
"""A count of at least one: heads, cores, a tensor's width."""
LargeInt = Annotated[int, Field(gt=0, le=10**9)]
"""A count that may be large: tokens of a sequence, entries of a vocabulary."""
MAX_GPUS = 10**7
"""Maximum number of GPUs, more than exist: a larger number is a mistake, and its divisors take too long to
find."""
MAX_LAYERS = 4096
"""Maximum number of a model's blocks, four times more than anybody has trained."""
GpuCount = Annotated[int, Field(gt=0, le=MAX_GPUS)]
"""A count of devices, nodes, or sequences in a batch."""
Overhead = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]
"""A short duration in seconds, written without a unit: a launch, the host's part of a step."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""A fraction from 0 to 1."""
Factor = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
"""A factor: bytes per element, or a number of copies or passes."""

TUPLE_FROM_LIST = Field(strict=False)
"""Field for a tuple that may be given as a list: filled-in defaults are lists, which strict validation would
refuse."""
OMITTED: Any = Field(default=None, exclude_if=lambda value: value is None)
"""Field that is None by default, and then left out of files."""
Efficiency = Field(ge=1e-6, le=1.5, allow_inf_nan=False)
"""Field for a fitted share of a rate: from nearly zero to above 1, where a datasheet's rate is too low."""


if TYPE_CHECKING:
    _Model = BaseModel
else:

    class _ReadableErrors(type(BaseModel)):
        """Metaclass of specs that reports wrong keyword arguments with the same sentences as wrong files."""

        def __call__(cls, *args: Any, **fields: Any) -> Any:
            try:
                return super().__call__(*args, **fields)
            except ValidationError as error:
                from cost_models.documents import spec_error

                raise spec_error(error, cls) from None

    class _Model(BaseModel, metaclass=_ReadableErrors):
        """Base class of all specs; type checkers see pydantic's `BaseModel`."""


class _LateSignature:
    """Descriptor that builds the signature of a spec class on first use. Until then the pydantic model of the
    class is incomplete and has none."""

    def __get__(self, value: Any, spec: type[Any]) -> Any:
        if value is not None:
            raise AttributeError("a value has no signature; its class has")
        spec.model_rebuild()
        return spec.__signature__


class Spec(_Model):
    """Base class of pydantic models that users write in files or Python, immutable, strict (no silent
    conversion), and without unknown fields.

    Raises:
        InputError: made of values that a field does not take; all problems at once.
    """

    if not TYPE_CHECKING:

        @classmethod
        def __pydantic_init_subclass__(cls, **_: Any) -> None:
            if not cls.__pydantic_complete__:
                cls.__signature__ = _LateSignature()

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
    """Options of pydantic. Validators are built with the first value, and docstrings are read only for
    schemas (`cost_models.files.parsing`), as a command needs few of a hundred specs."""


class CheckedSpec(Spec):
    """Base class of specs whose fields may contradict one another; subclasses list the checks."""

    def contradictions(self) -> Mapping[str, object]:
        """Mapping from an error sentence to whether the fields contradict each other in this way; the first true
        one is raised."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if problem := next((sentence for sentence, wrong in self.contradictions().items() if wrong), ""):
            raise ValueError(problem)
        return self
