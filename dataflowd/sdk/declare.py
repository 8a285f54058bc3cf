"""@job: marks a function as a job and, where it declares a model of its parameters, says which.

The function stays an ordinary function of one argument: a test may call it with a Context of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, overload

from pydantic import BaseModel, ValidationError

from dataflowd.faults import AttemptError
from dataflowd.nearest import did_you_mean

if TYPE_CHECKING:
    from dataflowd.sdk.context import Context

JobFunction = Callable[["Context"], Any]
_MODEL = "__dataflow_params__"


@overload
def job(function: JobFunction, /) -> JobFunction: ...
@overload
def job(*, params: type[BaseModel]) -> Callable[[JobFunction], JobFunction]: ...
def job(
    function: JobFunction | None = None, /, *, params: type[BaseModel] | None = None
) -> JobFunction | Callable[[JobFunction], JobFunction]:
    def mark(marked: JobFunction) -> JobFunction:
        setattr(marked, _MODEL, params)
        return marked

    return mark if function is None else mark(function)


class Params(Mapping[str, Any]):
    """Parameters without a model: `ctx.params.currency`, or as a mapping."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(
                f"the job has no parameter {name!r}{did_you_mean(name, self.__dict__.get('_values', {}))}; "
                f"write it into params in the flow file"
            ) from None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Params({self._values!r})"


def typed_params(function: Any, values: Mapping[str, Any]) -> Any:
    model: type[BaseModel] | None = getattr(function, _MODEL, None)
    if model is None:
        return Params(values)
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'params'}: {item['msg']}" for item in error.errors()
        )
        raise AttemptError(
            "INVALID_PARAMS",
            f"the parameters do not fit {model.__name__}: {wrong}",
            "correct params in the flow file",
        ) from None
