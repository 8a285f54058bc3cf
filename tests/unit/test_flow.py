"""Flow files: what is accepted, and which mistakes are reported."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dataflowd.flow import Flow, FlowMistakesError, load
from dataflowd.flow.source import Key, locate
from dataflowd.host.settings import Settings
from dataflowd.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FLOWS = Path(__file__).parent / "flows"
HEAD = """
[flow]
name = "f"
[dataset.a]
location = "{root}/a/{dataid}"
[dataset.b]
location = "{root}/b"
"""
JOB = """
[job.j]
command = ["true"]
inputs = ["a"]
outputs = ["b"]
"""


@pytest.fixture
def host(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data")


@pytest.fixture
def load_text(host: Settings, tmp_path: Path) -> Callable[[str], Flow]:
    def load_it(text: str) -> Flow:
        path = tmp_path / "flow.toml"
        path.write_text(text, encoding="utf-8")
        return load(path, host)

    return load_it


@pytest.fixture
def mistakes(load_text: Callable[[str], Flow]) -> Callable[[str], list[str]]:
    """The mistakes in a flow file, each as `line: what; remedy`. An empty list means that the file is right."""

    def say(text: str) -> list[str]:
        try:
            load_text(text)
        except FlowMistakesError as error:
            return [f"{mistake.line}: {mistake.what}; {mistake.remedy}" for mistake in error.mistakes]
        return []

    return say


def test_the_example_of_the_documentation_is_right(host: Settings) -> None:
    flow = load(FLOWS / "retail.toml", host)
    job = flow.jobs["clean_orders"]
    assert (flow.name, job.kind, job.code) == ("retail", "python", "jobs:clean_orders")
    assert job.inputs == {"raw_orders": {"kind": "identity"}}
    assert job.outputs == ("orders",)
    assert (job.max_running, job.max_attempts, job.retry_delay) == (4, 3, 30)
    assert job.spark == {"spark.sql.shuffle.partitions": "8"}
    assert flow.datasets["raw_orders"].location == f"{host.effective_root}/raw/orders/{{dataid}}.csv"
    assert flow.datasets["orders"].checks == {
        "min_rows": {"value": 1, "severity": "error"},
        "not_null": {"columns": ["order_id"], "severity": "error"},
        "unique": {"columns": ["order_id"], "severity": "error"},
    }


def test_ten_mistakes_are_all_reported_with_their_lines(host: Settings) -> None:
    path = FLOWS / "ten_mistakes.toml"
    with pytest.raises(InvalidFlowError) as caught:
        load(path, host)
    said = [line.removeprefix(f"{path}:") for line in caught.value.message.splitlines()[1:]]
    expected = [
        r"5: dataset.raw_orders.format is 'cvs' \(did you mean 'csv'\?\); write one of csv, .*",
        r"7: unknown key 'ordring' in dataset.raw_orders \(did you mean 'ordering'\?\); rename it; .*",
        r"10: dataset.orders.location is outside the allowed roots \(/etc/orders\); .*",
        r"15: dataset.clock.zone is 'Europe/Berlim', which is no time zone; .*",
        r"24: .* module 'jobs' has no function 'cleanorders' \(did you mean 'clean_orders'\?\); .*",
        r"25: job.clean_orders.inputs names the unknown dataset 'raw_order' \(did you mean 'raw_orders'\?\); .*",
        r"27: job.clean_orders.retry_delay is 'half an hour', which is no duration; .*",
        r"30: .* there is no module 'dataflowd.jobs_that_nobody_wrote'; .*",
        r"32: dataset 'orders' has two producers: job 'clean_orders' and job 'copy_orders'; .*",
        r"37: jobs wait for each other in a cycle: roll_up -> unroll -> roll_up; .*",
        r"38: .*to is 'month', which is not made of whole weeks; .*",
    ]
    assert len(said) == len(expected)
    for line, pattern in zip(said, expected, strict=True):
        assert re.fullmatch(pattern, line), line


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[dataset.c]", "8: dataset.c.location is missing for format 'parquet'"),
        ("[dataset.c]\nformat = 'postgres'", "8: dataset.c.tablename is missing"),
        ("[dataset.c]\nformat = 'iceberg'", "8: dataset.c.location is missing for format 'iceberg'"),
        (
            "[dataset.c]\nformat = 'postgres'\ntablename = 't'\nhostname = 'db7'",
            "11: dataset.c.hostname is 'db7', where tables may not be; use localhost, or add it to .* allowed_hosts",
        ),
        (
            "[dataset.c]\nformat = 'postgres'\ntablename = 't'\noptions = { partitions = 2 }",
            "11: dataset.c.options has only one of partitions and partition_column",
        ),
        (
            "[dataset.c]\nformat = 'postgres'\ntablename = 't'\noptions = { dbtable = 'x' }",
            "11: dataset.c.options has 'dbtable', which no table takes",
        ),
        (
            "[dataset.c]\nformat = 'postgres'\ntablename = 't'\n[job.j]\npython = 'dataflowd.jobs:copy'\ninputs = ['a']\noutputs = ['c']",
            "8: job 'j' writes the table of 'c', whose chunks cannot be told apart; .*dataid_column",
        ),
        ("[dataset.'ä']\nlocation = '{root}/c'", "8: 'ä' cannot name a dataset"),
        ("[dataset.today]\nlocation = '{root}/c'", "8: the dataset 'today' is built in"),
        ("[datasets.c]", r"8: unknown key 'datasets' \(did you mean 'dataset'\?\)"),
        ("[dataset.c]\nlocation = '{root}/../c'", "9: dataset.c.location is outside the allowed roots"),
        ("[dataset.c]\nlocation = '{root}elsewhere'", "9: dataset.c.location is outside the allowed roots"),
        ("[dataset.c]\nlocation = 'data/c'", "9: dataset.c.location is a relative path"),
        (
            "[dataset.c]\nlocation = 's3://x/c'",
            r"9: dataset.c.location has the scheme 's3' \(did you mean 's3a'\?\)",
        ),
        ("[dataset.c]\nlocation = 's3a:///c'", "9: dataset.c.location names no bucket"),
        ("[dataset.c]\nlocation = 'file://host/c'", "9: dataset.c.location names a host"),
        ("[dataset.c]\nlocation = 'jdbc:postgresql://h/c'", "9: dataset.c.location has the scheme 'jdbc'"),
        ("[dataset.c]\nlocation = '{rot}/c'", r"9: .* unknown placeholder \{rot\} \(did you mean 'root'\?\)"),
        ("[dataset.c]\nlocation = '{root}/{c'", "9: dataset.c.location has an unpaired brace"),
        ('[dataset.c]\nlocation = "{root}/c\\n"', "9: dataset.c.location holds a control character"),
        ("[dataset.c]\nlocation = 7", "9: dataset.c.location is an integer; write a string"),
        ("[dataset.c]\nlocation = '{root}/c'\nport = 70000", "10: dataset.c.port is 70000"),
        ("[dataset.c]\nlocation = '{root}/c'\nport = true", "10: dataset.c.port is a boolean"),
        ("[dataset.c]\nlocation = '{root}/c'\nschema = 'id'", "10: dataset.c.schema is no list of columns"),
        (
            "[dataset.c]\nlocation = '{root}/c'\nzone = 'UTC'",
            "10: dataset.c.zone is given without a calendar",
        ),
        (
            "[dataset.c]\nlocation = '{root}/c'\noptions = {password = 'x'}",
            "10: dataset.c.options holds a password",
        ),
        (
            "[dataset.c]\nlocation = '{root}/c'\noptions = {x = [1]}",
            "10: dataset.c.options has an array at 'x'",
        ),
        (
            "[dataset.c]\nformat = 'csv'\nlocation = '{root}/c'\nschema = 'id int'\noptions = {header = true, header_match = 'names'}",
            "12: dataset.c.options cannot be used: .*header_match has the value 'names'; .*name, position, off",
        ),
        (
            "[dataset.c]\nformat = 'json'\nlocation = '{root}/c'\nschema = 'id int'\noptions = {header_match = 'position'}",
            "12: dataset.c.options cannot be used: .*'position'; for json it is one of name, off",
        ),
        (
            "[dataset.c]\nformat = 'csv'\nlocation = '{root}/c'\nschema = 'id int'\noptions = {header_match = 'name'}",
            "12: dataset.c.options has header_match, and the files have no header; write header = true",
        ),
        (
            "[dataset.c]\nformat = 'csv'\nlocation = '{root}/c'\noptions = {header = true, header_match = 'name'}",
            "11: dataset.c.options has header_match, and the dataset has no schema",
        ),
        (
            "[dataset.c]\nformat = 'text'\nlocation = '{root}/c'\noptions = {header_match = 'off'}",
            "11: dataset.c.options cannot be used: .*takes no option 'header_match'",
        ),
        (
            "[dataset.c]\nlocation = '{root}/c'\ndescription = 'a\\u0000'\ndatabase = \"a\\u0000\"",
            "11: .*NUL",
        ),
        ("[dataset.c]\ncalendar = 'daily'", "8: dataset.c.start is missing for a calendar"),
        ("[dataset.c]\ncalendar = 'weekly'\nstart = 2026-01-01", "10: .* inside a period; .*2025-12-29"),
        (
            "[dataset.c]\ncalendar = 'daily'\nstart = 'soon'",
            "10: dataset.c.start is 'soon', which is no date",
        ),
        ("[dataset.c]\ncalendar = 'daily'\nstart = 5", "10: dataset.c.start is an integer"),
        (
            "[dataset.c]\ncalendar = 'daily'\nstart = 0001-01-01T00:00:00+09:00",
            "10: .* outside all calendars",
        ),
        ("[dataset.c]\ncalendar = 'daily'\nstart = 2026-01-01\nzone = '../etc'", "11: .* no time zone"),
    ],
)
def test_a_wrong_dataset_is_explained(mistakes: Callable[[str], list[str]], more: str, said: str) -> None:
    found = mistakes(HEAD.lstrip() + "\n" + more)
    assert any(re.match(said, line) for line in found), found


def test_an_unknown_format_is_reported_alone(mistakes: Callable[[str], list[str]]) -> None:
    [said] = mistakes(HEAD.lstrip() + "\n[dataset.c]\nformat = 'cvs'")
    assert "format is 'cvs' (did you mean 'csv'?)" in said


def test_a_wrong_calendar_is_one_mistake(mistakes: Callable[[str], list[str]]) -> None:
    text = "\n[dataset.c]\ncalendar = 'dayly'\nstart = 2026-01-01\nzone = 'UTC'\nready = 'start'"
    [said] = mistakes(HEAD.lstrip() + text)
    assert "calendar is 'dayly' (did you mean 'daily'?)" in said


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ("min_rows = -1", "min_rows.value is -1"),
        ("min_row = 1", r"unknown key 'min_row' in dataset.c.checks \(did you mean 'min_rows'\?\)"),
        ("min_rows = {value = 1, severity = 'fatal'}", "severity is 'fatal'"),
        ("not_null = []", "not_null.columns names no column"),
        ("not_null = ['idd']", r"names the column 'idd' \(did you mean 'id'\?\)"),
        ("unique = 'id'", "unique.columns is a string"),
        ("accepted_values = {id = []}", "id.values accepts nothing"),
        ("range = {id = 5}", "range.id is an integer"),
        ("range = {id = {min = 2, max = 1}}", "min is 2, above max 1"),
        ("range = {id = {}}", "min and max are missing"),
        ("regex = {id = '('}", "is no regular expression"),
        ("schema = 'id'", "schema.columns is no list of columns"),
        ("row_count = {input = 'a', tolerance = 2}", "tolerance is 2"),
        ("custom = ['nothing:here']", "there is no module 'nothing'"),
        ("custom = 'nothing:here'", "custom is a string"),
    ],
)
def test_a_wrong_check_is_explained(mistakes: Callable[[str], list[str]], checks: str, said: str) -> None:
    text = f"{HEAD}[dataset.c]\nlocation='{{root}}/c'\nschema='id bigint, m map<string,int>'\n[dataset.c.checks]\n{checks}"
    found = mistakes(text)
    assert any(re.search(said, line) for line in found), found


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("inputs = ['a']\noutputs = ['b']", "7: job.j names no code; write exactly one of python, sql"),
        (
            "inputs = ['a']\noutputs = ['b']\nsql = 'x.sql'\nexecutor = 'outside'",
            '11: job.j.executor is "outside", and the job names code \\(sql\\); remove one of the two',
        ),
        (
            "inputs = ['a']\noutputs = ['b']\nexecutor = 'daemons'",
            "10: job.j.executor is 'daemons' .did you mean 'daemon'..; write one of daemon, outside",
        ),
        (
            "sql = 'x.sql'\npython = 'x:y'\ninputs = ['a']\noutputs = ['b']",
            r"7: job.j names its code 2 times \(python, sql\)",
        ),
        ("sql = 'x.sql'\ninputs = ['a']\noutputs = ['b']", "8: .* the file 'x.sql' does not exist"),
        ("command = ['./x.sh']\ninputs = ['a']\noutputs = ['b']", "8: .* the file './x.sh' does not exist"),
        (
            "command = ['./flow.toml']\ninputs = ['a']\noutputs = ['b']",
            "8: .* './flow.toml' is not executable",
        ),
        ("command = ['no-such-program']\ninputs = ['a']\noutputs = ['b']", "8: .* is not on PATH"),
        ("command = 'rm -rf /'\ninputs = ['a']\noutputs = ['b']", "8: job.j.command is no array of strings"),
        (
            "command = ['true', '-v',\n'{a_locaton}']\ninputs = ['a']\noutputs = ['b']",
            r"9: .*\{a_locaton\} \(did you mean 'a_location'\?\).* \{\{a_locaton\}\}",
        ),
        (
            "command = ['true', 'x=$a_location']\ninputs = ['a']\noutputs = ['b']",
            r"8: .*\$a_location, which no shell .*; write \{a_location\}",
        ),
        (
            "command = ['true', '${dataid}']\ninputs = ['a']\noutputs = ['b']",
            r"8: .*\$dataid, which no shell .*; write \{dataid\}",
        ),
        (
            "command = ['true', '{a_password}']\ninputs = ['a']\noutputs = ['b']",
            r"8: .*\{a_password\}, a password.*; let the script take a_password from its environment",
        ),
        (
            "command = ['sh', '-c', 'ls {b_location}']\ninputs = ['a']\noutputs = ['b']",
            r"8: .*\{b_location\}, where nothing is replaced .* reads \"\$b_location\"",
        ),
        ("command = []\ninputs = ['a']\noutputs = ['b']", "8: job.j.command names no program"),
        (
            "spark_submit = ['etl.py']\ninputs = ['a']\noutputs = ['b']",
            "8: .* the file 'etl.py' does not exist",
        ),
        ("python = 'jobs'\ninputs = ['a']\noutputs = ['b']", "8: .* 'jobs' names no function"),
        ("command = ['true']\ninputs = ['a']", "7: job.j.outputs is missing"),
        ("command = ['true']\ninputs = ['a']\noutputs = []", "10: job.j.outputs is missing"),
        ("command = ['true']\noutputs = ['b']", "7: job 'j' has no inputs"),
        ("command = ['true']\ninputs = ['a', 'a']\noutputs = ['b']", "9: job.j.inputs has 'a' twice"),
        ("command = ['true']\ninputs = ['a',\n7]\noutputs = ['b']", "10: job.j.inputs has an integer in it"),
        ("command = ['true']\ninputs = ['b']\noutputs = ['b']", "9: job 'j' reads its own output 'b'"),
        (
            "command = ['true']\ninputs = ['a']\noutputs = ['today']",
            "10: job 'j' writes 'today', which is a calendar",
        ),
        ("command = ['true']\ninputs = ['a']\noutputs = ['b']\nmax_running = 'four'", "11: .* is a string"),
        ("command = ['true']\ninputs = ['a']\noutputs = ['b']\nmax_attempts = 0", "11: .* is 0; .* from 1"),
        (
            "command = ['true']\ninputs = ['a']\noutputs = ['b']\npriority = 99999999999",
            "11: job.j.priority is",
        ),
        (
            "command = ['true']\ninputs = ['a']\noutputs = ['b']\ntimeout = '99999999999d'",
            "11: job.j.timeout is",
        ),
        (
            "command = ['true']\ninputs = ['a']\noutputs = ['b']\nretry_delay = -1",
            "11: job.j.retry_delay is -1",
        ),
        ("command = ['true']\ninputs = ['a']\noutputs = ['b']\nretry_delay = nan", "11: .* is no duration"),
        (
            "command = ['true']\ninputs = ['a']\noutputs = ['b']\nstrict_order = 'yes'",
            "11: .* write true or false",
        ),
        (
            "command = ['true']\ninputs = ['a']\noutputs = ['b']\nparams = {x = inf}",
            "11: job.j.params.x is inf",
        ),
        (
            "command = ['true']\ninputs = ['a']\noutputs = ['b']\nquarantine = 1.5",
            "11: job.j.quarantine is 1.5",
        ),
        (
            "command = ['true']\ninputs = ['a']\noutputs = ['b']\nspark = {x = 1}",
            "11: job.j.spark has the key 'x'",
        ),
        (
            "command = ['true']\ninputs = ['a']\noutputs = ['b']\nchecks = {row_count = 'c'}",
            "11: row_count compares",
        ),
    ],
)
def test_a_wrong_job_is_explained(mistakes: Callable[[str], list[str]], job: str, said: str) -> None:
    found = mistakes(f"{HEAD.lstrip()}[job.j]\n{job}")
    assert any(re.match(said, line) for line in found), found


@pytest.mark.parametrize(
    ("mapping", "kept"),
    [
        ("'identity'", {"kind": "identity"}),
        ("{kind='offset', by=-1, unit='day'}", {"kind": "offset", "by": -1, "unit": "day"}),
        (
            "{kind='window', from='hour', to='day'}",
            {"kind": "window", "from": "hour", "to": "day", "zone": "UTC"},
        ),
        (
            "{kind='window', from='day', to='month', zone='Europe/Berlin'}",
            {"kind": "window", "from": "day", "to": "month", "zone": "Europe/Berlin"},
        ),
        ("{kind='window', size=24}", {"kind": "window", "size": 24}),
        ("{kind='window', last=7, unit='day'}", {"kind": "window", "last": 7, "unit": "day"}),
        ("{kind='all', dataids=['x', 'y']}", {"kind": "all", "dataids": ["x", "y"], "dataid": "all"}),
        (
            "{kind='all', partitioning='size_5000', dataid='whole'}",
            {"kind": "all", "partitioning": "size_5000", "dataid": "whole"},
        ),
    ],
)
def test_each_kind_of_mapping_is_kept_as_sql_reads_it(
    load_text: Callable[[str], Flow], mapping: str, kept: dict[str, Any]
) -> None:
    flow = load_text(f"{HEAD}[job.j]\ncommand=['true']\noutputs=['b']\n[job.j.inputs]\na = {mapping}")
    assert flow.jobs["j"].inputs == {"a": kept}


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ("'offset'", "a is 'offset' without its details"),
        ("'identiy'", r"did you mean 'identity'"),
        ("5", "a is an integer"),
        ("{by = 1}", "a has no kind"),
        ("{kind='ofset'}", r"kind is 'ofset' \(did you mean 'offset'\?\)"),
        ("{kind='offset'}", "by is missing"),
        ("{kind='offset', by=0, unit='day'}", "by is 0, which is no offset"),
        ("{kind='offset', by=-1, unit='days'}", r"unit is 'days' \(did you mean 'day'\?\)"),
        ("{kind='window'}", "a is no window"),
        ("{kind='window', size=2, last=2}", "a is no window"),
        ("{kind='window', size=0}", "size is 0"),
        ("{kind='window', from='day', to='hour'}", "to is 'hour'"),
        ("{kind='window', from='day', to='day'}", "to is 'day', which is not made of whole days"),
        ("{kind='window', from='week', to='year'}", "not made of whole weeks"),
        ("{kind='window', from='hour', to='day', zone='Mars'}", "zone is 'Mars'"),
        ("{kind='window', last=7}", "unit is missing"),
        ("{kind='all'}", "does not say what all of them are"),
        ("{kind='all', dataids=[]}", "dataids is empty"),
        ("{kind='all', dataids=['a/b']}", "has 'a/b' in it, which is no dataid"),
        ("{kind='fixed'}", "dataid is missing"),
        ("{kind='fixed', dataid='-x'}", "dataid is '-x', which is no dataid"),
        ("{kind='fixed', dataid='v1'}", "has only fixed inputs"),
        ("{kind='identity', by=1}", "unknown key 'by'.*; remove it"),
    ],
)
def test_an_impossible_mapping_is_explained_on_its_line(
    mistakes: Callable[[str], list[str]], mapping: str, said: str
) -> None:
    found = mistakes(
        f"{HEAD.lstrip()}[job.j]\ncommand=['true']\noutputs=['b']\n[job.j.inputs]\na = {mapping}"
    )
    assert any(re.search(said, line) for line in found), found
    assert {line.partition(":")[0] for line in found} <= {"10", "11"}, found


def test_inputs_that_disagree_on_the_dataid_are_a_mistake(mistakes: Callable[[str], list[str]]) -> None:
    inputs = "a = {kind='window', from='hour', to='day'}\nc = {kind='window', from='day', to='month'}"
    text = f"{HEAD}[dataset.c]\nlocation='{{root}}/c'\n[job.j]\ncommand=['true']\noutputs=['b']\n[job.j.inputs]\n{inputs}"
    assert "disagree on what its dataids are: day by a, month by c" in mistakes(text)[0]


ALL = "{kind='all', dataids=['1', '2'], dataid='whole'}"


def test_identity_beside_all_would_never_run_and_is_a_mistake(mistakes: Callable[[str], list[str]]) -> None:
    text = f"{HEAD}[dataset.c]\nlocation='{{root}}/c'\n[job.j]\ncommand=['true']\noutputs=['b']\n[job.j.inputs]\na = {ALL}\n"
    [said] = mistakes(f"{text}c = 'identity'")
    assert "job 'j' has one run, 'whole', because it reads all of 'a'" in said
    assert '{kind = "fixed", dataid = ' in said
    assert mistakes(f"{text}c = {{kind='fixed', dataid='v1'}}") == []


def test_identity_beside_all_is_right_where_a_job_makes_that_very_chunk(
    mistakes: Callable[[str], list[str]],
) -> None:
    """`total` makes one chunk of all parts, `copy` copies it, and `report` reads all parts and the copy."""
    text = f"""{HEAD}[dataset.c]
location='{{root}}/c'
[dataset.d]
location='{{root}}/d'
[job.total]
command=['true']
outputs=['b']
inputs={{a={ALL}}}
[job.copy]
command=['true']
outputs=['c']
inputs=['b']
[job.report]
command=['true']
outputs=['d']
inputs={{a=%s, c='identity'}}
"""
    assert mistakes(text % ALL) == []
    [said] = mistakes(text % ALL.replace("whole", "other"))
    assert "job 'report' has one run, 'other'" in said


def test_a_mapping_that_cannot_find_a_chunk_of_its_dataset_is_a_mistake(
    mistakes: Callable[[str], list[str]],
) -> None:
    text = f"""{HEAD}[dataset.c]
calendar = "daily"
start = 2026-01-01
[job.j]
command = ["true"]
outputs = ["b"]
[job.j.inputs]
c = {{kind = "window", from = "hour", to = "day"}}
"""
    assert "counts in hours, but c has daily dataids" in mistakes(text)[0]


def test_a_job_may_read_its_own_output_of_yesterday(mistakes: Callable[[str], list[str]]) -> None:
    inputs = "a = 'identity'\nb = {kind='offset', by=-1, unit='day'}"
    assert mistakes(f"{HEAD}[job.j]\ncommand=['true']\noutputs=['b']\n[job.j.inputs]\n{inputs}") == []


def test_environments_do_not_mix_in_a_job(mistakes: Callable[[str], list[str]]) -> None:
    text = HEAD.replace("[dataset.b]", "environment='prod'\n[dataset.b]\nenvironment='test'") + JOB
    assert "job 'j' mixes environments: a is bound to 'prod', b is bound to 'test'" in mistakes(text)[0]


def test_two_outputs_at_one_location_are_a_mistake(mistakes: Callable[[str], list[str]]) -> None:
    text = f"{HEAD}[dataset.c]\nlocation='{{root}}/b/'\n{JOB}".replace("outputs = ['b']", "").replace(
        '["b"]', '["b", "c"]'
    )
    assert "datasets 'b' and 'c' are written to the same location" in mistakes(text)[0]


def test_a_value_where_a_table_belongs_is_a_mistake(mistakes: Callable[[str], list[str]]) -> None:
    assert mistakes("dataset = 1\njob.j = 1\n[flow]\nname = 'f'") == [
        "1: dataset is an integer; write a table: [dataset]",
        "2: job.j is an integer; write a table: [job.j]",
    ]


def test_every_separate_cycle_is_named(mistakes: Callable[[str], list[str]]) -> None:
    names = ["p", "q", "r", "s"]
    text = "[flow]\nname='f'\n" + "".join(f"[dataset.{name}]\nlocation='{{root}}/{name}'\n" for name in names)
    for name, source in [("p", "q"), ("q", "p"), ("r", "s"), ("s", "r")]:
        text += f"[job.make_{name}]\ncommand=['true']\ninputs=['{source}']\noutputs=['{name}']\n"
    found = mistakes(text)
    assert ["make_p -> make_q -> make_p" in found[0], "make_r -> make_s -> make_r" in found[1]] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("location='{root}/a'", ""),
        ("location='{root}/{dataid}/a'", "the location has {dataid} in it"),
        ("location='hdfs://name:8020/a'", "only a file system of the host can do in one step"),
        ("location='{root}/a'\nformat='delta'", "format 'delta' has no files to rename"),
    ],
)
def test_publishing_by_rename_needs_files_at_a_path_of_the_host(
    host: Settings, tmp_path: Path, declared: str, says: str
) -> None:
    path = tmp_path / "flow.toml"
    path.write_text(f"[flow]\nname='f'\n[dataset.a]\n{declared}\npublish='rename'\n")
    allowed = host.model_copy(update={"allowed_roots": [host.effective_root, "hdfs://name:8020/"]})
    if not says:
        assert load(path, allowed).datasets["a"].publish == "rename"
        return
    with pytest.raises(InvalidFlowError, match=re.escape(says)):
        load(path, allowed)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("digest=true", ""),
        ("expect_newer=true\nordering='date'", ""),
        ("expect_newer=true", "ordering is 'natural': a dataid may name no day"),
        ("digest=true\nformat='delta'", "format 'delta' has no files to look at"),
        ("digest='sha256'", "digest"),
    ],
)
def test_what_is_asked_of_the_right_data_needs_files_and_days(
    host: Settings, tmp_path: Path, declared: str, says: str
) -> None:
    path = tmp_path / "flow.toml"
    path.write_text(f"[flow]\nname='f'\n[dataset.a]\nlocation='{{root}}/a/{{dataid}}'\n{declared}\n")
    if not says:
        assert True in {load(path, host).datasets["a"].digest, load(path, host).datasets["a"].expect_newer}
        return
    with pytest.raises(InvalidFlowError, match=re.escape(says)):
        load(path, host)


def test_a_location_under_any_allowed_root_is_right(host: Settings, tmp_path: Path) -> None:
    path = tmp_path / "flow.toml"
    locations = ["s3a://lake/a", "file:///srv/data/x/a", "hdfs://name:8020/a", "/srv/data"]
    path.write_text(
        "[flow]\nname='f'\n" + "".join(f"[dataset.d{n}]\nlocation='{l}'\n" for n, l in enumerate(locations))  # noqa: E741
    )
    allowed = ["s3a://lake", "/srv/data/", "hdfs://name:8020/"]
    assert len(load(path, host.model_copy(update={"allowed_roots": allowed})).datasets) == 4


def test_an_installed_module_and_a_package_beside_the_flow_are_found(
    load_text: Callable[[str], Flow], tmp_path: Path
) -> None:
    package = tmp_path / "etl"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('executed')\n")
    (package / "load.py").write_text("try:\n    from x import run\nexcept ImportError:\n    def run(): ...\n")
    for reference in ("etl.load:run", "dataflowd.model.suggest:did_you_mean", "json.decoder:JSONDecoder"):
        assert (
            load_text(HEAD + JOB.replace('command = ["true"]', f"python = '{reference}'")).jobs["j"].code
            == reference
        )


def test_a_module_with_a_syntax_error_is_a_mistake(
    mistakes: Callable[[str], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("def run(:\n")
    found = mistakes(HEAD + JOB.replace('command = ["true"]', "python = 'broken:run'"))
    assert "module 'broken' is not valid Python: broken.py:1:" in found[0]


def test_an_executable_beside_the_flow_is_a_command(load_text: Callable[[str], Flow], tmp_path: Path) -> None:
    script = tmp_path / "load.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    flow = load_text(HEAD + JOB.replace('["true"]', '["./load.sh", "", "--fast", "--fast"]'))
    assert flow.jobs["j"].code == ("./load.sh", "", "--fast", "--fast")


def test_spark_configuration_may_be_written_with_or_without_quotes(load_text: Callable[[str], Flow]) -> None:
    spark = '[job.j.spark]\nspark.sql.shuffle.partitions = 8\n"spark.sql.adaptive.enabled" = false\n'
    assert load_text(HEAD + JOB + spark).jobs["j"].spark == {
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.adaptive.enabled": "false",
    }


def test_the_configuration_hash_changes_with_what_a_run_makes_and_with_nothing_else(
    load_text: Callable[[str], Flow],
) -> None:
    def digest(text: str) -> str:
        return load_text(text).config_hash("j")

    usual = digest(HEAD + JOB)
    assert digest(HEAD + JOB + "max_running = 3\npriority = 5\n") == usual
    assert digest(HEAD.replace("{root}/b", "{root}/elsewhere") + JOB) == usual
    others = {
        digest(HEAD + JOB + more)
        for more in ("params = {x = 1}\n", "spark = {'spark.x' = 1}\n", "quarantine = 3\n")
    }
    assert len(others | {usual}) == 4


def test_the_database_never_gets_code(host: Settings) -> None:
    document = str(load(FLOWS / "retail.toml", host).document())
    assert "jobs:clean_orders" not in document
    assert "shuffle" not in document


def test_bad_toml_names_its_line(mistakes: Callable[[str], list[str]]) -> None:
    assert mistakes("[flow]\nname = \n")[0].startswith("2: the file is not valid TOML: Invalid value")
    assert mistakes("[flow]\nname = 'f'\n[flow]\n")[0].startswith("3: ")
    assert mistakes("x = [1,\n")[0].startswith("2: ")
    assert mistakes("x = " + "9" * 5000)[0].startswith("1: ")
    assert "nested too deeply" in mistakes("x = " + "[" * 100_000)[0]


def test_a_file_that_cannot_be_read_is_one_mistake(host: Settings, tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"[flow]\nname = 'caf\xe9'\n")
    os.mkfifo(tmp_path / "pipe.toml")
    expected = {
        "latin.toml": "latin.toml:2: the file is not UTF-8: byte 0xe9",
        ".": "the file is a directory",
        "missing.toml": "missing.toml:1: the file does not exist",
        "pipe.toml": "the file is no ordinary file",
        "nul\0.toml": "the file cannot be read",
        "x" * 300: "the file cannot be read",
    }
    for name, said in expected.items():
        with pytest.raises(InvalidFlowError) as caught:
            load(tmp_path / name, host)
        assert said in caught.value.message


def _keys(value: Any, key: Key = ()) -> Iterator[Key]:
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, child in children:
        yield (*key, name)
        yield from _keys(child, (*key, name))


INTRICATE = '''# [not.a.table]
top = """
[no.table]
no = 'key' \\""" """""
"quoted.key" = 'it"s'   # = [
[a]
b.c = 1
b."d e".'f' = [ 1, # one ]
  [2, 3], {x = 1, y.z = ["]"]},
]
long = \'\'\'
x = 1
\'\'\'\'\'
when = 1979-05-27 07:32:00
[ a . g ]
[[list]]
n = 1
[list.sub]
m = 1
[[list]]
[[list.deep]]
[list.deep.er]
k = {}
[[list.deep]]
end = []'''


def test_the_locator_finds_every_key_that_tomllib_reads() -> None:
    lines = locate(INTRICATE)
    assert set(lines) == set(_keys(tomllib.loads(INTRICATE)))
    expected: dict[Key, int] = {
        ("top",): 2,
        ("quoted.key",): 5,
        ("a",): 6,
        ("a", "b", "c"): 7,
        ("a", "b", "d e", "f", 1, 1): 9,
        ("a", "b", "d e", "f", 2, "y", "z"): 9,
        ("a", "long"): 11,
        ("a", "when"): 14,
        ("a", "g"): 15,
        ("list", 0, "sub", "m"): 19,
        ("list", 1): 20,
        ("list", 1, "deep", 0, "er", "k"): 23,
        ("list", 1, "deep", 1): 24,
        ("list", 1, "deep", 1, "end"): 25,
    }
    assert {key: lines[key] for key in expected} == expected


TOML_WORDS = ["[", "]", "[[", "]]", "{", "}", "=", ".", ",", "\n", " ", "#", '"', "'", '"""', "'''", "\\", "a", "b", "1", "flow", "job", "true"]  # fmt: skip


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(TOML_WORDS), max_size=30).map("".join))
def test_the_locator_agrees_with_tomllib_on_any_text(text: str) -> None:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(locate(text)) == set(_keys(data))


LEAVES = st.one_of(st.integers(), st.booleans(), st.text("ab{}/.-: \0", max_size=8), st.floats())
FLOW_WORDS = """
flow dataset job name a b location inputs outputs kind checks calendar start zone params spark command python sql
min_rows range custom by unit from to options not_null timeout quarantine dataids size last regex row_count
"""
TABLE_KEYS = st.sampled_from(FLOW_WORDS.split())
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TABLE_KEYS, inner, max_size=4),
    max_leaves=25,
)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\0", "\\u0000") + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(element)}" for key, element in value.items()) + "}"
    return repr(value)


@hypothesis_settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "flow": DOCUMENTS,
            "dataset": DOCUMENTS | st.fixed_dictionaries({"a": DOCUMENTS}),
            "job": DOCUMENTS | st.fixed_dictionaries({"a": DOCUMENTS}),
        },
    )
)
def test_any_document_is_loaded_or_refused(
    load_text: Callable[[str], Flow], document: dict[str, Any]
) -> None:
    try:
        load_text("\n".join(f"{key} = {_toml(value)}" for key, value in document.items()))
    except InvalidFlowError as error:
        assert error.message  # noqa: PT017 - either outcome is right, a third is not
