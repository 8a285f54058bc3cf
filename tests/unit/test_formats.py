"""Options are data: only those that a format is known to take reach Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dataflowd.model import formats
from dataflowd.model.faults import AttemptError


def test_one_table_of_options_serves_reading_and_writing() -> None:
    options = {"header": True, "multiLine": True, "quoteAll": False, "SEP": ";"}
    assert formats.read_options("raw", "csv", options) == {"header": "true", "multiLine": "true", "sep": ";"}
    assert formats.write_options("raw", "csv", options) == {"header": "true", "quoteAll": "false", "sep": ";"}


def test_header_match_is_not_passed_to_spark() -> None:
    options = {"header": True, "Header_Match": "position"}
    assert formats.read_options("raw", "csv", options) == {"header": "true"}
    assert formats.header_match("raw", "csv", options) == "position"
    assert formats.header_match("raw", "parquet", {}) == "name"
    with pytest.raises(AttemptError, match="header_match has the value 'x'"):
        formats.write_options("raw", "parquet", {"header_match": "x"})


@pytest.mark.parametrize("name", ["mode", "path", "inferSchema", "columnNameOfCorruptRecord", "headers"])
def test_an_option_that_is_not_listed_is_refused(name: str) -> None:
    with pytest.raises(AttemptError, match="takes no option") as refused:
        formats.read_options("raw", "csv", {name: "x"})
    assert refused.value.code == "INVALID_OPTION"


def test_the_refusal_of_a_mistyped_option_suggests_the_nearest() -> None:
    with pytest.raises(AttemptError, match="did you mean 'header'"):
        formats.write_options("raw", "csv", {"headers": True})


def test_importing_what_job_authors_import_does_not_import_spark() -> None:
    program = "from dataflowd import job, Context; import sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
