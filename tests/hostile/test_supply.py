"""An attacker between us and the package index serves other files under the requested names and versions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import dataflowd

CHECKOUT = Path(dataflowd.__file__).resolve().parent.parent
LOCKS = ("build.txt", "constraints.txt", "demo.txt", "release.txt", "runtime.txt")
PATIENCE_SECONDS = 300.0
OWN = "dataflowd"
MARK = "attacker-was-here"


def pinned(name: str) -> dict[Requirement, list[str]]:
    """The requirements of a file of hashes, each with its hashes."""
    text = (CHECKOUT / ".ci" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in filter(None, text.splitlines()):
        requirement, *hashes = re.split(r"\s+--hash=", line)
        found[Requirement(requirement)] = [each.strip() for each in hashes]
    return found


def versions(name: str) -> dict[str, str]:
    """The versions for this Python and this platform."""
    return {
        canonicalize_name(each.name): str(each.specifier)
        for each in pinned(name)
        if each.marker is None or each.marker.evaluate()
    }


def needed(name: str, extra: str = "") -> set[str]:
    """The requirements of an installed package, and their requirements."""
    found: set[str] = set()
    todo = [Requirement(f"{name}[{extra}]" if extra else name)]
    seen = set()
    while todo:
        asked = todo.pop()
        key = (canonicalize_name(asked.name), frozenset(asked.extras))
        if key in seen:
            continue
        seen.add(key)
        found.add(key[0])
        for line in metadata.requires(asked.name) or []:
            each = Requirement(line)
            extras = [{"extra": extra} for extra in ("", *asked.extras)]
            if each.marker is None or any(each.marker.evaluate(extra) for extra in extras):
                todo.append(each)
    return found - {canonicalize_name(name)}


@pytest.mark.parametrize("name", LOCKS)
def test_every_pinned_version_has_hashes(name: str) -> None:
    found = pinned(name)
    assert found
    assert [str(each) for each, hashes in found.items() if not hashes] == []
    assert {each.partition(":")[0] for hashes in found.values() for each in hashes} == {"sha256"}
    assert [str(each) for each in found if not str(each.specifier).startswith("==")] == []


def test_the_bill_of_materials_is_made_of_what_an_installation_needs_and_of_nothing_else() -> None:
    """`make release` makes it from this file."""
    assert set(versions("runtime.txt")) == needed(OWN)
    installed = {name: f"=={metadata.version(name)}" for name in needed(OWN)}
    assert versions("runtime.txt") == installed
    assert versions("runtime.txt").items() <= versions("constraints.txt").items()


def test_the_demo_installs_what_it_needs_and_nothing_else() -> None:
    assert set(versions("demo.txt")) == needed(OWN, "embedded")
    assert versions("demo.txt").items() <= versions("constraints.txt").items()
    assert not {"pytest", "ruff", "mypy"} & versions("demo.txt").keys()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that `make` needs for an installation, and an index with an attacker's files."""
    path, index = tmp_path / "checkout", tmp_path / "index"
    index.mkdir()
    shutil.copytree(CHECKOUT / ".ci", path / ".ci")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, path)
    for requirement in {**pinned("build.txt"), **pinned("constraints.txt")}:
        name, version = requirement.name.replace("-", "_"), str(requirement.specifier).removeprefix("==")
        about = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(index / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.pth", f"import pathlib; pathlib.Path({str(path / MARK)!r}).touch()\n")
            wheel.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {requirement.name}\nVersion: {version}\n"
            )
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
    return path


def make(checkout: Path, target: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", target, f"PYTHON={sys.executable}"],
        cwd=checkout,
        env={
            "PATH": f"{path}/usr/bin:/bin",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(checkout.parent / "index"),
            "HOME": str(checkout.parent),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def uv(checkout: Path, status: int) -> str:
    """A directory for PATH with a program `uv` that records its arguments."""
    directory = checkout.parent / "bin"
    directory.mkdir()
    (directory / "uv").write_text(f'#!/bin/sh\necho "$@" >> {checkout}/uv.log\nexit {status}\n')
    (directory / "uv").chmod(0o755)
    return f"{directory}:"


@pytest.mark.parametrize("target", ["install", "demo"])
def test_a_file_that_is_not_the_one_we_know_is_not_installed(checkout: Path, target: str) -> None:
    made = make(checkout, target)
    assert made.returncode != 0
    assert "DO NOT MATCH THE HASHES" in made.stderr
    assert not (checkout / MARK).exists()


def test_uv_is_asked_for_the_same_files_with_their_hashes(checkout: Path) -> None:
    program = uv(checkout, status=0)
    (checkout / ".venv" / "bin").mkdir(parents=True)
    for name in ("python", "dataflowd"):
        (checkout / ".venv" / "bin" / name).symlink_to("/bin/true")
    made = make(checkout, "demo", program)
    assert made.returncode == 0, made.stderr
    locked = (
        "pip install --python .venv/bin/python --no-build-isolation --no-deps --require-hashes --requirement"
    )
    assert (checkout / "uv.log").read_text().splitlines() == [
        f"{locked} .ci/build.txt",
        f"{locked} .ci/demo.txt",
        "pip install --python .venv/bin/python --no-build-isolation --no-deps --editable .",
    ]
    # make prints what it installs, how large that is, and where, so that a person does not wait at a silent screen.
    assert "installing what the demo needs: PySpark, Java, Postgres, 1.1 GB into .venv" in made.stdout
    assert f"- .ci/demo.txt: {len(pinned('demo.txt'))} packages" in made.stdout
    assert re.search(r"^installed: \S+ in \.venv, after \d+ s$", made.stdout, re.MULTILINE)


def test_where_uv_fails_pip_installs_and_refuses_the_same(checkout: Path) -> None:
    made = make(checkout, "demo", uv(checkout, status=1))
    assert made.returncode != 0
    assert "uv has failed; trying the same with pip" in made.stdout
    assert "DO NOT MATCH THE HASHES" in made.stderr
    assert not (checkout / MARK).exists()


def audit(directory: Path, said: str, status: int) -> subprocess.CompletedProcess[str]:
    """Runs our audit with a fake pip-audit that prints this."""
    program = directory / "pip-audit"
    (directory / "said").write_text(said, encoding="utf-8")
    program.write_text(f"#!/bin/sh\ncat {directory}/said\necho 'no route to host' >&2\nexit {status}\n")
    program.chmod(0o755)
    ours = [sys.executable, str(CHECKOUT / ".ci" / "audit.py"), str(program)]
    return subprocess.run(ours, capture_output=True, text=True, check=False)


def test_an_audit_lists_known_vulnerabilities_and_passes_without_a_database(tmp_path: Path) -> None:
    away = audit(tmp_path, "", 1)
    assert (away.returncode, away.stderr) == (0, "")
    assert away.stdout == "audit: nothing was audited, the database cannot be reached: no route to host\n"
    skipped = {"name": "idna", "skip_reason": "not found"}
    assert "nothing was audited" in audit(tmp_path, json.dumps({"dependencies": [skipped]}), 0).stdout
    well = {"name": "idna", "version": "3.20", "vulns": []}
    clean = audit(tmp_path, json.dumps({"dependencies": [well, skipped]}), 0)
    assert (clean.returncode, clean.stdout[:30]) == (0, "audit: 0 known vulnerabilities")
    ill = well | {"vulns": [{"id": "CVE-1", "fix_versions": ["3.21"]}]}
    found = audit(tmp_path, json.dumps({"dependencies": [ill]}), 1)
    assert found.returncode == 1
    assert found.stdout.startswith("idna 3.20: CVE-1, repaired in 3.21\n")
