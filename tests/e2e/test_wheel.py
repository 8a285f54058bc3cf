"""The wheel has all files that it needs: built from the checkout, it sets up a database from an empty environment elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import psycopg
import pytest

import dataflowd
from dataflowd.host import sqlfiles

CHECKOUT = Path(dataflowd.__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel offline: the build backend is one of the test requirements."""
    directory = tmp_path_factory.mktemp("wheel")
    build = "from hatchling.build import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", build, str(directory)],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
        text=True,
    )
    return directory / built.stdout.split()[-1]


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel alone.

    Its requirements, half a gigabyte with Spark, are not downloaded again: a .pth file names the directory in which
    they are installed. Python does not find the checkout, because it follows the .pth file of an editable install
    only in the environment's own site-packages.
    """
    directory = tmp_path_factory.mktemp("elsewhere")
    venv.create(directory, with_pip=False)
    site_packages = next(directory.glob("lib/python3*/site-packages"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(directory),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            str(wheel),
        ],
        check=True,
        capture_output=True,
    )
    requirements = Path(psycopg.__file__).parent.parent
    (site_packages / "requirements.pth").write_text(f"{requirements}\n", encoding="utf-8")
    return directory


def run(
    elsewhere: Path, dsn: str, home: Path, program: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [elsewhere / "bin" / program, *arguments],
        cwd=home,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "DATAFLOW_DSN": dsn,
            "DATAFLOW_DATA_DIR": str(home / "data"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_holds_the_sql_files_the_flows_and_the_type_marker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    files = {path.relative_to(sqlfiles.sql_dir()) for path in sqlfiles.sql_dir().rglob("*.sql")}
    assert {f"dataflowd/sql/{path}" for path in files} <= held
    assert "dataflowd/py.typed" in held
    flows = {CHECKOUT / "dataflowd" / "scaffold", CHECKOUT / "examples" / "quickstart"}
    carried = {path for flow in flows for path in flow.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    within = {str(path.relative_to(CHECKOUT)).removeprefix("dataflowd/") for path in carried}
    assert {f"dataflowd/{path}" for path in within} <= held
    assert not [name for name in held if "__pycache__" in name]
    assert not [name for name in held if name.startswith(("tests/", "sql/"))]


def test_the_installed_wheel_sets_up_and_examines_a_database(
    elsewhere: Path, empty_dsn: str, tmp_path: Path
) -> None:
    where = subprocess.run(
        [elsewhere / "bin" / "python", "-c", "import dataflowd; print(dataflowd.__file__)"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(elsewhere)
    made = run(elsewhere, empty_dsn, tmp_path, "dataflowctl", "init")
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("applied migration ") == len(sqlfiles.migrations())
    examined = run(elsewhere, empty_dsn, tmp_path, "dataflowctl", "doctor", "--no-spark")
    assert examined.returncode == 0, examined.stdout + examined.stderr
    flow = run(elsewhere, empty_dsn, tmp_path, "dataflowctl", "new", "flow", "shop")
    assert flow.returncode == 0, flow.stderr
    for path in (
        "shop/flow.toml",
        where.stdout.strip().replace("__init__.py", "examples/quickstart/flow.toml"),
    ):
        checked = run(elsewhere, empty_dsn, tmp_path, "dataflowctl", "apply", "--check", path)
        assert checked.returncode == 0, checked.stderr
    version = run(elsewhere, empty_dsn, tmp_path, "dataflowd", "--version")
    assert version.stdout == f"dataflowd {dataflowd.__version__}\n"
