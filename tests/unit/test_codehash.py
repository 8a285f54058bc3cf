"""The hash of a job's code changes when its meaning may have changed, and only then."""

from __future__ import annotations

import ast
import hashlib
import sys
from pathlib import Path

import pytest

from dataflowd.flow import codehash
from dataflowd.flow.module_parts import dumped

EVERY_SYNTAX = "bc5b421d7179c13a58b2369ccbba8f3d88a78e63400e6f3746316e917c72159f"
JOBS = "import rates\nfrom tools import texts\n\ndef clean(ctx):\n    return rates.of(ctx) + 1\n"


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "rates.py").write_text("def of(ctx):\n    from deep import inside\n    return 2\n")
    (tmp_path / "deep.py").write_text("inside = 1\n")
    (tmp_path / "other.py").write_text("x = 1\n")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("")
    (tmp_path / "tools" / "texts.py").write_text("from . import marks\n")
    (tmp_path / "tools" / "marks.py").write_text("comma = ','\n")
    return tmp_path


def of(flow: Path) -> str:
    return codehash.of_python(["jobs:clean"], flow).hash


def test_comments_formatting_and_docstrings_do_not_count(flow: Path) -> None:
    before = of(flow)
    changed = JOBS.replace("\n\ndef", "\n\n\n# why\ndef").replace(":\n", ':\n    """What it does."""\n')
    (flow / "jobs.py").write_text('"""All jobs."""\n' + changed)
    assert of(flow) == before


@pytest.mark.parametrize(
    "name", ["jobs.py", "rates.py", "deep.py", "tools/texts.py", "tools/marks.py", "tools/__init__.py"]
)
def test_a_change_in_anything_that_it_imports_from_the_flow_counts(flow: Path, name: str) -> None:
    before = of(flow)
    with (flow / name).open("a") as file:
        file.write("\nprint(1)\n")
    assert of(flow) != before


def test_what_it_does_not_import_does_not_count(flow: Path) -> None:
    before = of(flow)
    (flow / "other.py").write_text("x = 2\n")
    assert of(flow) == before


def test_code_that_cannot_be_parsed_has_a_hash_too(flow: Path) -> None:
    (flow / "rates.py").write_text("def of(:\n")
    before = of(flow)
    (flow / "rates.py").write_text("def of(;\n")
    assert of(flow) != before


def test_comments_in_sql_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("SELECT 1\nFROM x\n")
    before = codehash.of_sql("a.sql", tmp_path).hash
    (tmp_path / "a.sql").write_text("-- why\nSELECT 1   \n\n  FROM x\n")
    assert codehash.of_sql("a.sql", tmp_path).hash == before
    (tmp_path / "a.sql").write_text("SELECT 2\nFROM x\n")
    assert codehash.of_sql("a.sql", tmp_path).hash != before


def test_a_word_counts_as_the_file_that_it_names_or_as_itself(tmp_path: Path) -> None:
    def of(*words: str) -> str:
        return codehash.of_command(words, tmp_path).hash

    script = tmp_path / "load.py"
    script.write_text("1\n", encoding="utf-8")
    first = of("python3", "load.py", "{raw_location}")
    assert first != of("python3", "load.py", "{raw_dataid}")
    script.write_text("2\n", encoding="utf-8")
    assert first != of("python3", "load.py", "{raw_location}")
    assert of("sh", "-c", "x" * 300) != of("sh", "-c", "y" * 300)  # longer than a file name may be
    script.write_text("1\n", encoding="utf-8")
    # The parts name a word by its position and never store the word: it may be a whole script.
    assert set(codehash.of_command(["sh", "load.py", "-c"], tmp_path).parts) == {
        "word 1 of the command",
        "load.py",
        "word 3 of the command",
    }


def test_the_hash_of_the_whole_modules_is_that_of_release_0_1(flow: Path) -> None:
    """The expected value is the hash that release 0.1 computed for these files under Python 3.11 and 3.12."""
    whole = codehash.of_python(["jobs:clean"], flow).whole_hash
    assert whole == codehash.of_modules(["jobs:clean"], flow)
    if sys.version_info < (3, 13):
        assert whole == "2a6529fbb114efaa81a0382570428a9c50b80e49558a64274a7362e0848fe27b"


def test_a_job_has_the_same_hash_under_every_python(flow: Path) -> None:
    assert of(flow) == "8eb5b56e6db4fcc0c9ab428acf69b4a5b6f23891144d2f3237b308aa3f754f9a"


def test_all_syntax_has_the_same_hash_under_every_python() -> None:
    """Python 3.11, 3.12 and 3.13 agree on the expected value. Otherwise an update of Python would make all chunks stale."""
    text = Path(__file__).with_name("every_syntax.txt").read_text(encoding="utf-8")
    assert hashlib.sha256(dumped(ast.parse(text)).encode()).hexdigest() == EVERY_SYNTAX
