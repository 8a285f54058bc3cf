"""The decorators @job and @node.

@job marks a function as a job, and can name the pydantic model of its parameters. It stays an ordinary function of one
argument: a test can call it with a Context of its own. @node makes a function, whose first argument is the Context, a named
step of the job that calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from pydantic import BaseModel, ValidationError

from dataflowd.model.faults import AttemptError
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from dataflowd.sdk.context import Context

P = ParamSpec("P")
T = TypeVar("T")
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


def node(function: Callable[Concatenate[Context, P], T]) -> Callable[Concatenate[Context, P], T]:
    """Makes a function a step with the function's name: it is timed, named in errors, and the rows of its DataFrame are counted.

    A node with branches returns several DataFrames in a dict or a tuple; each is counted by its key or its position. The
    rows are counted while the job writes, in the same pass. The count stops filters of later steps: Spark does not push them
    down to the source. `with ctx.node(name)` names a step without counting.
    """

    @wraps(function)
    def step(ctx: Context, /, *arguments: P.args, **named: P.kwargs) -> T:
        name = function.__name__
        with ctx.node(name):
            made = function(ctx, *arguments, **named)
        counted: T = _counted(ctx, name, made)
        return counted

    return step


def _counted(ctx: Context, name: str, made: Any) -> Any:
    if _is_frame(made):
        return ctx.counted(name, made)
    if type(made) is dict and any(map(_is_frame, made.values())):
        return {key: _branch(ctx, name, key, value) for key, value in made.items()}
    if isinstance(made, tuple | list) and any(map(_is_frame, made)):
        keys = getattr(made, "_fields", range(1, len(made) + 1))
        counted = [_branch(ctx, name, key, value) for key, value in zip(keys, made, strict=True)]
        return type(made)(*counted) if hasattr(made, "_fields") else type(made)(counted)
    return made


def _branch(ctx: Context, name: str, key: Any, value: Any) -> Any:
    return ctx.counted(name, value, branch=str(key)) if _is_frame(value) else value


def _is_frame(value: Any) -> bool:
    return type(value).__name__ == "DataFrame"


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
