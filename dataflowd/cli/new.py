"""The command new: `new flow NAME` makes a directory with a flow that runs as it is.

The files in dataflowd/cli/scaffold are a whole flow, called `flowname`. They are copied under the new name, which also
stands in the names of its datasets and jobs: these are unique in a database. All of them arrive at once, or none.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from dataflowd.cli import options
from dataflowd.cli.output import say
from dataflowd.model.errors import NotAllowedError

SCAFFOLD = Path(__file__).resolve().parent / "scaffold"
PLACEHOLDER = "flowname"
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Make the files of something new, to begin with."
    )
    options.add(group, flow, prefix="new")
    group.callback()(
        lambda: None
    )  # Typer would drop the word `flow` of a group with one command; this keeps it
    app.add_typer(group, name="new")


def flow(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the flow; also in its datasets and jobs.")
    ],
    *,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where to make it; default: a directory NAME here.")
    ] = None,
) -> None:
    """Make a flow that runs as it is: flow.toml, a job, its unit test, sample data and a README. Overwrites nothing.

    Examples:
    dataflowctl new flow shop
    dataflowctl new flow shop --dir flows/shop
    """
    if not NAME.fullmatch(name):
        raise typer.BadParameter(
            f"{name!r} is not a name for a flow: use a small letter, then up to 39 small letters, digits and _"
        )
    target = (directory or Path(name)).expanduser()
    _refuse_others(target)
    made = _make(name, target)
    say(f"made {target}: {', '.join(made)}")
    say(f"next: cd {target}, and type the commands in README.md")


def _refuse_others(target: Path) -> None:

    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise NotAllowedError(f"{target} exists already", "choose another name, or another place with --dir")


def _make(name: str, target: Path) -> list[str]:

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as unfinished:
            made = _copied(name, Path(unfinished) / name)
            (Path(unfinished) / name).rename(target)
    except OSError as error:
        raise NotAllowedError(
            f"{target} cannot be made: {error.strerror or error}", "choose another place with --dir"
        ) from None
    return made


def _copied(name: str, directory: Path) -> list[str]:
    """Copies the files. They are written anew, because installed files may be read-only. Returns the names in the directory."""
    for path in sorted(SCAFFOLD.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            copy = directory / path.relative_to(SCAFFOLD)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text(encoding="utf-8").replace(PLACEHOLDER, name), encoding="utf-8")
    return sorted(path.name + "/" * path.is_dir() for path in directory.iterdir())
