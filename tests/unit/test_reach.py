"""Which parts of a flow's modules a job reaches. A change that may change the job's result has to change its hash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dataflowd.flow import codehash, reach

if TYPE_CHECKING:
    from pathlib import Path

JOBS = """\
import logging
import re
from dataflowd import job, node
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
import rates
from tools import texts

log = logging.getLogger(__name__)
PATTERN = re.compile("x")
LIMIT = 5
OTHER = 6
COUNTRIES = ["de", "fr"]

@node
def kept(ctx, rows):
    log.info("kept")
    return rows.where(F.col("c").isin(COUNTRIES))

@F.udf(returnType=StringType())
def short(text):
    return text[:LIMIT]

@job
def clean(ctx):
    return kept(ctx, rates.of(ctx)).withColumn("t", short("t"))

@job
def load(ctx):
    return texts.strip(ctx, OTHER, PATTERN)
"""
FILES = {
    "jobs.py": JOBS,
    "rates.py": "def of(ctx):\n    import deep\n    return deep.inside()\n\ndef other():\n    return 2\n",
    "deep.py": "def inside():\n    return 1\n\ndef outside():\n    return 2\n",
    "lonely.py": "x = 1\n",
    "tools/__init__.py": "",
    "tools/texts.py": "from . import marks\n\ndef strip(*given):\n    return marks.COMMA\n",
    "tools/marks.py": "COMMA = ','\nSEMICOLON = ';'\n",
}


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    write(tmp_path, FILES)
    return tmp_path


def write(flow: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = flow / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def parts(flow: Path, function: str = "clean") -> set[str]:
    return set(reach.parts_of([f"jobs:{function}"], flow)) - {f"reference jobs:{function}"}


def of(flow: Path, function: str = "clean") -> str:
    return codehash.of_python([f"jobs:{function}"], flow).hash


TOPS = {"jobs.py", "rates.py", "tools/__init__.py", "tools/texts.py", "tools/marks.py"}


def test_a_job_is_what_it_names_and_the_top_level_of_what_it_imports(flow: Path) -> None:
    own = {
        "jobs.py:clean",
        "jobs.py:kept",
        "jobs.py:short",
        "jobs.py:LIMIT",
        "jobs.py:COUNTRIES",
        "rates.py:of",
    }
    assert parts(flow) == TOPS | own | {"deep.py", "deep.py:inside"}
    assert parts(flow, "load") == TOPS | {
        "jobs.py:load",
        "jobs.py:OTHER",
        "tools/texts.py:strip",
        "tools/marks.py:COMMA",
    }


@pytest.mark.parametrize(
    ("file", "before", "after", "stale"),
    [
        ("jobs.py", "kept(ctx, rates", "kept(ctx, 2, rates", {"clean"}),
        ("jobs.py", "LIMIT = 5", "LIMIT = 4", {"clean"}),
        ("jobs.py", "OTHER = 6", "OTHER = 7", {"load"}),
        ("jobs.py", '"fr"', '"it"', {"clean"}),
        ("jobs.py", "text[:LIMIT]", "text[1:LIMIT]", {"clean"}),
        ("jobs.py", 're.compile("x")', 're.compile("y")', {"clean", "load"}),
        ("jobs.py", "import re\n", "import re, json\n", {"clean", "load"}),
        ("jobs.py", "@node\n", "@node\n# why\n", set()),
        ("jobs.py", "def kept(ctx, rows):\n", 'def kept(ctx, rows):\n    """What."""\n', set()),
        ("rates.py", "return 2", "return 3", set()),
        ("rates.py", "deep.inside()", "deep.inside() + 1", {"clean"}),
        ("deep.py", "return 1", "return 3", {"clean"}),
        ("deep.py", "return 2", "return 3", set()),
        ("tools/marks.py", "','", "'.'", {"load"}),
        ("tools/marks.py", "';'", "'.'", set()),
        ("tools/__init__.py", "", "print(1)\n", {"clean", "load"}),
        ("lonely.py", "1", "2", set()),
    ],
)
def test_only_what_a_job_reaches_changes_its_hash(
    flow: Path, file: str, before: str, after: str, stale: set[str]
) -> None:
    was = {name: of(flow, name) for name in ("clean", "load")}
    write(flow, {file: FILES[file].replace(before, after, 1)})
    assert {name for name in was if of(flow, name) != was[name]} == stale


ALONE = "def clean(ctx):\n    return 1\n\ndef load(ctx):\n    return 2\n"


# The hash of `clean` includes `load`: `load` may change a value that `clean` reads, or nobody can prove that it does not.
@pytest.mark.parametrize(
    "text",
    [
        "SEEN = []\ndef clean(ctx):\n    return SEEN\ndef load(ctx):\n    SEEN.append(2)\n",
        "SEEN = {}\ndef clean(ctx):\n    return len(SEEN)\ndef load(ctx):\n    SEEN['a'] = 2\n",
        "SEEN = []\ndef clean(ctx):\n    return len(SEEN)\ndef load(ctx):\n    mine = SEEN\n    mine.append(2)\n",
        "SEEN = []\ndef put(x):\n    x.append(2)\ndef clean(ctx):\n    return len(SEEN)\ndef load(ctx):\n    put(SEEN)\n",
        "A, B = [], []\ndef clean(ctx):\n    return len(A)\ndef load(ctx):\n    for x in A:\n        x(2)\n",
        "SEEN = [[]]\ndef clean(ctx):\n    return SEEN[0]\ndef load(ctx):\n    x = SEEN[0]\n    x.append(2)\n",
        "from collections import defaultdict\nSEEN = defaultdict(list)\ndef clean(ctx):\n    return 1\ndef load(ctx):\n    return SEEN[2]\n",
        "COUNT = 0\ndef clean(ctx):\n    return COUNT\ndef load(ctx):\n    global COUNT\n    COUNT = 2\n",
        "class Box:\n    def bump(self):\n        self.n = 1\nBOX = Box()\ndef clean(ctx):\n    return BOX.n\ndef load(ctx):\n    BOX.bump(2)\n",
        "class Box:\n    seen = []\ndef clean(ctx):\n    return 1\ndef load(ctx):\n    Box.seen.append(2)\n",
        "def clean(ctx):\n    return clean.n\ndef load(ctx):\n    clean.n = 2\n",
        "import os\ndef clean(ctx):\n    return os.environ['X']\ndef load(ctx):\n    os.environ['X'] = '2'\n",
        "ALL = []\ndef keep(f):\n    ALL.append(f)\n    return f\ndef clean(ctx):\n    return 1\n@keep\ndef load(ctx):\n    return 2\n",
        "from elsewhere import keep\ndef clean(ctx):\n    return 1\n@keep\ndef load(ctx):\n    return 2\n",
        "def clean(ctx):\n    return 1\ndef load(ctx, x=print(2)):\n    return 2\n",
        "def clean(ctx):\n    return globals()['lo' + 'ad'](ctx)\ndef load(ctx):\n    return 2\n",
        "def clean(ctx):\n    return eval('lo' + 'ad')(ctx)\ndef load(ctx):\n    return 2\n",
        "import sys\ndef clean(ctx):\n    return getattr(sys.modules[__name__], 'load')\ndef load(ctx):\n    return 2\n",
        "if True:\n    def load(ctx):\n        return 2\ndef clean(ctx):\n    return 1\n",
        "def load(ctx):\n    return 2\ndef load(ctx):\n    return 3\ndef clean(ctx):\n    return 1\n",
        "def load(ctx):\n    return 2\nSTEPS = {'load': load}\ndef clean(ctx):\n    return 1\n",
        "def load(ctx):\n    return 2\nVALUE = load(None)\ndef clean(ctx):\n    return 1\n",
        "def load(ctx):\n    return 2\nclass Step:\n    run = load\ndef clean(ctx):\n    return 1\n",
        "def clean(ctx):\n    return __getattr__('load')\ndef __getattr__(name):\n    return name\ndef load(ctx):\n    return 2\n",
    ],
)
def test_functions_that_may_affect_each_other_share_a_hash(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"jobs.py": text})
    before = of(tmp_path)
    write(tmp_path, {"jobs.py": text.replace("2", "7")})
    assert of(tmp_path) != before


@pytest.mark.parametrize(
    "text",
    [
        ALONE,
        "SEEN = ('a', 'b')\ndef clean(ctx):\n    return SEEN\ndef load(ctx):\n    mine = SEEN\n    return 2\n",
        "SEEN = ['a', 'b']\ndef clean(ctx):\n    return len(SEEN)\ndef load(ctx):\n    return [x for x in SEEN if 2 in SEEN]\n",
        "import logging\nlog = logging.getLogger('x')\ndef clean(ctx):\n    log.info('')\ndef load(ctx):\n    log.info(2)\n",
        "A = 1\nB = A + 1\ndef clean(ctx):\n    return B\ndef load(ctx):\n    return B + 2\n",
        "import functools\ndef clean(ctx):\n    return 1\n@functools.lru_cache(maxsize=None)\ndef load(ctx):\n    return 2\n",
    ],
)
def test_functions_that_cannot_affect_each_other_have_separate_hashes(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"jobs.py": text})
    before = of(tmp_path)
    write(tmp_path, {"jobs.py": text.replace("2", "7")})
    assert of(tmp_path) == before


# Ways to reach a module. Each leads to VALUE in far.py, and none by a plain `from far import VALUE`.
@pytest.mark.parametrize(
    ("jobs", "more"),
    [
        ("import far\ndef clean(ctx):\n    return getattr(far, ctx)\n", {}),
        ("import far\ndef clean(ctx):\n    return ctx(far)\n", {}),
        ("import far as f\ndef clean(ctx):\n    return f.VALUE\n", {}),
        ("from far import *\ndef clean(ctx):\n    return VALUE\n", {}),
        ("from near import VALUE\ndef clean(ctx):\n    return VALUE\n", {"near.py": "from far import VALUE\n"}),
        ("from near import VALUE\ndef clean(ctx):\n    return VALUE\n", {"near.py": "from far import *\n"}),
        ("import near\ndef clean(ctx):\n    return near.far.VALUE\n", {"near.py": "import far\n"}),
        ("import near\ndef clean(ctx):\n    return near.VALUE\n", {"near.py": "import far\ndef __getattr__(n):\n    return getattr(far, n)\n"}),
        ("import pkg.far\ndef clean(ctx):\n    return pkg.far.VALUE\n", {"pkg/far.py": "from far import VALUE\n"}),
        ("import pkg.far\ndef clean(ctx):\n    return ctx(pkg)\n", {"pkg/far.py": "from far import VALUE\n"}),
        ("import pkg\nimport near\ndef clean(ctx):\n    return pkg.far.VALUE\n", {"pkg/far.py": "from far import VALUE\n", "near.py": "import pkg.far\n"}),
        ("import pkg.sub.far\ndef clean(ctx):\n    return pkg.sub.far.VALUE\n", {"pkg/__init__.py": "", "pkg/sub/far.py": "from far import VALUE\n"}),
        ("import pkg\ndef clean(ctx):\n    return pkg.VALUE\n", {"pkg/__init__.py": "from far import VALUE\n"}),
        ("from pkg import far\ndef clean(ctx):\n    return far.VALUE\n", {"pkg/far.py": "import far\nVALUE = far.VALUE\n"}),
        ("def clean(ctx):\n    from far import VALUE as v\n    return v\n", {}),
        ("import importlib\ndef clean(ctx):\n    return importlib.import_module('f' + 'ar').VALUE\n", {}),
        ("from importlib import import_module as load\ndef clean(ctx):\n    return load('f' + 'ar').VALUE\n", {}),
        ("def clean(ctx):\n    return __import__('f' + 'ar').VALUE\n", {}),
        ("def clean(ctx):\n    ctx.spark.sparkContext.addPyFile('far.py')\n", {}),
        ("import near\ndef clean(ctx):\n    return near.go()\n", {"near.py": "import importlib\ndef go():\n    return importlib.import_module('f' + 'ar')\n"}),
        ("try:\n    import far\nexcept ImportError:\n    far = None\ndef clean(ctx):\n    return far.VALUE\n", {}),
        ("import far\nclass Step:\n    def run(self):\n        return far.VALUE\ndef clean(ctx):\n    return Step().run()\n", {}),
        ("import far\ndef clean(ctx):\n    def inner():\n        return [far.VALUE for _ in ctx]\n    return inner\n", {}),
        ("import far\ndef clean(ctx):\n    return " + "(" * 30 + "far.VALUE" + ".real" * 400 + ")" * 30 + "\n", {}),
        ("import far\ndef clean(ctx):\n    return far.VALUE" + ".bit_length()" * 600 + "\n", {}),
    ],
)  # fmt: skip
def test_a_value_counts_by_whatever_way_the_job_reaches_it(
    tmp_path: Path, jobs: str, more: dict[str, str]
) -> None:
    write(tmp_path, {"jobs.py": jobs, "far.py": "VALUE = 1\n", **more})
    before = of(tmp_path)
    write(tmp_path, {"far.py": "VALUE = 2\n"})
    assert of(tmp_path) != before


def test_a_virtual_environment_beside_the_code_does_not_count(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"jobs.py": "import importlib\ndef clean(ctx):\n    pass\n", "env/pyvenv.cfg": "", "env/x.py": "1\n"},
    )
    assert parts(tmp_path) == {"jobs.py", "jobs.py:clean"}


def test_a_data_directory_with_the_name_of_a_package_does_not_count(flow: Path) -> None:
    before = of(flow)
    for name in ("dataflowd", "pyspark", "logging"):
        (flow / name).mkdir()
        (flow / name / "data.csv").write_text("1\n", encoding="utf-8")
    assert of(flow) == before


def test_a_module_of_the_flow_with_the_name_of_a_package_counts(flow: Path) -> None:
    before = of(flow)
    write(flow, {"logging.py": "def getLogger(name):\n    return []\n"})
    assert of(flow) != before


def test_a_function_that_is_not_there_counts_as_its_module(flow: Path) -> None:
    assert {"jobs.py:clean", "jobs.py:load"} <= parts(flow, "missing")


def test_a_job_of_an_installed_package_has_no_parts(tmp_path: Path) -> None:
    assert set(reach.parts_of(["dataflowd.jobs:copy"], tmp_path)) == {"reference dataflowd.jobs:copy"}


def test_when_there_are_too_many_parts_whole_files_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codehash, "PARTS_KEPT", 2)
    write(tmp_path, {"jobs.py": "A = 1\nB = 2\ndef clean(ctx):\n    return A, B\n"})
    found = codehash.of_python(["jobs:clean"], tmp_path).parts
    assert set(found) == {"reference jobs", "jobs.py"}
