"""Finds the code that a job names, without running any of it.

A module is looked for beside the flow file first, then among the installed packages. Its syntax tree is searched for the
function. Nothing is imported, not even a parent package: an import executes code, and checking a flow must be safe.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec

_REFERENCE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)", re.ASCII)


class MissingCodeError(ValueError):
    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


def check_python(reference: str, directory: Path) -> None:
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise MissingCodeError(f"{reference!r} names no function", 'write it as "module:function"')
    module, function = found["module"], found["function"]
    path = _module_file(module, directory)
    if path is None:
        return  # a compiled module has no source to search
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise MissingCodeError(
            f"module {module!r} is not valid Python: {path.name}:{line}: {getattr(error, 'msg', error)}",
            "correct the module",
        ) from None
    except OSError as error:
        raise MissingCodeError(
            f"module {module!r} cannot be read: {error.strerror}", "check its permissions"
        ) from None
    names = set(_top_level_names(tree.body))
    if function not in names and "*" not in names:
        public = sorted(name for name in names if not name.startswith("_"))
        raise MissingCodeError(
            f"module {module!r} has no function {function!r}{did_you_mean(function, public)}",
            f"define it at the top level of {path.name}",
        )


def check_sql(name: str, directory: Path) -> None:
    path = directory / name
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingCodeError(f"the file {name!r} does not exist", f"make it in {directory}") from None
    except (OSError, ValueError) as error:
        raise MissingCodeError(
            f"the file {name!r} cannot be read: {error}", "name a UTF-8 text file"
        ) from None
    if not text.strip():
        raise MissingCodeError(f"the file {name!r} is empty", "write a SELECT into it")


def check_command(words: Sequence[str], directory: Path) -> None:
    program = words[0]
    if "/" not in program:
        if shutil.which(program) is None:
            beside = (
                f'write "./{program}"'
                if (directory / program).is_file()
                else "install it, or name it by its path"
            )
            raise MissingCodeError(f"the program {program!r} is not on PATH", beside)
        return
    path = directory / program
    if not path.is_file():
        raise MissingCodeError(
            f"the file {program!r} does not exist", f"a relative path starts at {directory}"
        )
    if not os.access(path, os.X_OK):
        raise MissingCodeError(f"the file {program!r} is not executable", f"run chmod +x {program}")


def check_spark_submit(words: Sequence[str], directory: Path) -> None:
    application = words[0]
    if application.startswith("-") or "://" in application:
        return  # an option comes first, or the file exists only on the cluster
    if not (directory / application).is_file():
        raise MissingCodeError(
            f"the file {application!r} does not exist", f"a relative path starts at {directory}"
        )


def _module_file(module: str, directory: Path) -> Path | None:
    parts = module.split(".")
    beside = directory.joinpath(*parts)
    for path in (beside.with_name(beside.name + ".py"), beside / "__init__.py"):
        if path.is_file():
            return path
    spec = _find_spec(parts)
    if spec is None or (spec.origin is None and not spec.has_location):
        raise MissingCodeError(
            f"there is no module {module!r}", f"make {'/'.join(parts)}.py in {directory}, or install it"
        )
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _find_spec(parts: list[str]) -> ModuleSpec | None:
    """As importlib.util.find_spec, but without importing parent packages: it looks into their directories instead."""
    search: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    for index in range(1, len(parts) + 1):
        name = ".".join(parts[:index])
        specs = (finder.find_spec(name, search) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((found for found in specs if found is not None), None)
        if spec is None or (index < len(parts) and spec.submodule_search_locations is None):
            return None
        search = spec.submodule_search_locations
    return spec


def _top_level_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
            case ast.If(body=body, orelse=other):
                yield from _top_level_names([*body, *other])
            case ast.Try(body=body, orelse=other, finalbody=final, handlers=handlers):
                yield from _top_level_names([*body, *other, *final])
                for handler in handlers:
                    yield from _top_level_names(handler.body)
            case ast.With(body=body):
                yield from _top_level_names(body)
            case _:
                pass
