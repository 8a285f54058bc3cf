"""Job code attacks its daemon: its memory, its environment, its database, the private key."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import conninfo

from dataflowd import flow
from dataflowd.cli.doctor.attackers import JOB, ROWS, WRITE
from dataflowd.host import keyfile, runner_user, seal
from dataflowd.host.embedded import account as server_account
from dataflowd.host.embedded import password, postgres
from dataflowd.host.settings import Settings
from dataflowd.model.errors import EXIT, EmbeddedError, InvalidSettingsError
from tests.fix_daemon import daemons
from tests.fix_postgres import reachable_directory, run_program
from tests.processes import IS_ROOT, needs_root, require_python_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.fix_daemon import Shop, StartDaemon
    from tests.fix_postgres import RunCtl

CANARY = "canary-of-the-dsn"
REFUSED = {"EACCES", "EPERM"}
SPARK_SECONDS = 240.0
JOBS_USER = "daemon"  # every Linux has this user, and it owns nothing of ours
SECURITY = Path(__file__).parents[2] / "docs" / "security.md"

# What the job tries; for each attack it reports an error number, or what it has read.
ATTACK = r"""
import ctypes, errno, json, os, re, socket, struct
daemon, scratch = os.getppid(), os.path.dirname(os.environ["DATAFLOW_REPORT"])
data_dir = os.path.dirname(os.path.dirname(scratch))
postgres = os.path.join(data_dir, "postgres")

def memory():
    maps = open(f"/proc/{daemon}/maps").read()
    start = int(re.search(r"^([0-9a-f]+)-[0-9a-f]+ rw", maps, re.M)[1], 16)
    with open(f"/proc/{daemon}/mem", "rb", buffering=0) as file:
        file.seek(start)
        return file.read(16)

def trace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(0x4206, daemon, 0, 0):  # PTRACE_SEIZE, which does not stop it
        raise OSError(ctypes.get_errno(), "ptrace")

def database():
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.path.join(postgres, "run", ".s.PGSQL.5432"))
        words = b"user\0postgres\0database\0postgres\0\0"
        server.sendall(struct.pack("!ii", 8 + len(words), 196608) + words)
        answer = server.recv(9)
        return "let in" if answer[:1] == b"R" and answer[5:] == bytes(4) else "asked for a password"

tried = {}
for name, what in {
    "memory": memory,
    "environ": lambda: open(f"/proc/{daemon}/environ").read(),
    "descriptors": lambda: os.listdir(f"/proc/{daemon}/fd"),
    "trace": trace,
    "database": database,
    "its passfile": lambda: open(os.path.join(postgres, "password")).read(),
    "its files": lambda: os.listdir(os.path.join(postgres, "data")),
    "key": lambda: open(os.path.join(data_dir, "key")).read(),
    "key in scratch": lambda: open(os.path.join(scratch, "key")).read(),
}.items():
    try:
        tried[name] = repr(what())
    except OSError as error:
        tried[name] = errno.errorcode[error.errno]
print(json.dumps(tried | {"variables": sorted(os.environ)}), flush=True)
"""
FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "none"
[dataset.clean]
format = "none"
[job.work]
command = ["{python}", "-I", "-S", "{attack}"]
inputs = ["raw"]
outputs = ["clean"]
"""


def told(log_dir: Path) -> dict[str, Any]:
    [log] = log_dir.glob("work/1/*.log")
    [line] = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found


def test_secrets_leave_the_environment_of_a_running_daemon(
    shop: Shop, start_daemon: StartDaemon, dsn: str
) -> None:
    """They also leave the block that /proc shows. After a SIGHUP the daemon still has them."""
    shop.job("true")
    secret = conninfo.make_conninfo(dsn, password=CANARY)
    daemon = start_daemon(env={"DATAFLOW_DSN": secret, "PGPASSWORD": CANARY})
    if IS_ROOT:
        shown = Path(f"/proc/{daemon.pid}/environ").read_text(encoding="utf-8")
        assert "DATAFLOW_DATA_DIR" in shown
        assert CANARY not in shown
    else:
        with pytest.raises(PermissionError):
            Path(f"/proc/{daemon.pid}/environ").read_text(encoding="utf-8")
    daemon.signal(signal.SIGHUP)
    daemon.said("daemon.reloaded")
    assert not daemon.events("daemon.needs_restart")
    shop.ready(1)
    daemon.said("attempt.finished")
    assert shop.count("READY") == 1
    assert daemon.stop() == 0


def test_a_password_in_the_environment_still_opens_the_database(tmp_path: Path) -> None:
    with reachable_directory() as data_dir:
        try:
            address = conninfo.conninfo_to_dict(postgres.ensure_running(data_dir))
            file = Path(str(address.pop("passfile")))
            known = file.read_text(encoding="ascii").strip().rpartition(":")[2]
            env = {"DATAFLOW_DSN": conninfo.make_conninfo(**address), "HOME": str(tmp_path)}  # type: ignore[arg-type]
            env |= {"DATAFLOW_DATA_DIR": str(tmp_path / "dataflowd")}
            for words in (["init"], ["status"], ["psql", "-c", "SELECT 1"]):
                done = run_program("dataflowctl", *words, env=env | {"PGPASSWORD": known})
                assert done.returncode == 0, done.stderr
            wrong = run_program("dataflowctl", "status", env=env | {"PGPASSWORD": "wrong"})
            assert "password authentication failed" in wrong.stderr
        finally:
            postgres.stop(data_dir)


@pytest.mark.skipif(IS_ROOT, reason="root reads the memory of every process")
def test_a_job_of_the_daemons_own_user_reads_nothing_of_its_process(
    shop: Shop, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    (tmp_path / "attack.py").write_text(ATTACK, encoding="utf-8")
    shop.job(f"exec {sys.executable} -I -S {tmp_path}/attack.py")
    shop.ready(1)
    assert start_daemon("--once", wait=False).ended() == 0
    found = told(tmp_path / "dataflowd" / "log")
    assert {found[name] for name in ("memory", "environ", "descriptors", "trace")} <= REFUSED, found
    assert not {"DATAFLOW_DSN", "PGPASSWORD", "PGPASSFILE"} & set(found["variables"])


@pytest.fixture
def embedded_host() -> Iterator[dict[str, str]]:
    """The settings of a host with the embedded database, and with a ready chunk for a job that attacks."""
    with reachable_directory() as directory:
        data_dir = directory / "dataflowd"
        env = {"DATAFLOW_DATA_DIR": str(data_dir), "HOME": str(directory), "DATAFLOW_HTTP_PORT": "0"}
        env |= {"DATAFLOW_FLOWS": str(directory / "flow.toml"), "DATAFLOW_ENGINE": "process"}
        env |= {"PGPASSWORD": "of another database"}
        (directory / "attack.py").write_text(ATTACK, encoding="utf-8")
        text = FLOW.format(python=sys.executable, attack=directory / "attack.py")
        (directory / "flow.toml").write_text(text, encoding="utf-8")
        try:
            for words in (["init"], ["apply", str(directory / "flow.toml")], ["ready", "raw", "1"]):
                done = run_program("dataflowctl", *words, env=env)
                assert done.returncode == 0, done.stderr
            yield env
        finally:
            postgres.stop(data_dir)


def test_a_job_that_finds_the_embedded_socket_is_asked_for_a_password(embedded_host: dict[str, str]) -> None:
    done = run_program("dataflowd", "run", "--once", env=embedded_host)
    assert done.returncode == 0, done.stderr
    found = told(Path(embedded_host["DATAFLOW_DATA_DIR"]) / "log")
    assert found["database"] == "'asked for a password'"
    assert not {name for name in found["variables"] if name.startswith(("PG", "DATAFLOW_DSN"))}


@needs_root
def test_a_job_of_runner_user_gets_neither_at_the_daemon_nor_at_its_database(
    embedded_host: dict[str, str],
) -> None:
    require_python_of(JOBS_USER)
    data_dir = Path(embedded_host["DATAFLOW_DATA_DIR"])
    keyfile.add(data_dir / "key", [keyfile.line(seal.generate())])
    done = run_program("dataflowd", "run", "--once", env=embedded_host | {"DATAFLOW_RUNNER_USER": JOBS_USER})
    assert done.returncode == 0, done.stderr
    found = told(data_dir / "log")
    del found["variables"]
    assert found.pop("key in scratch") == "ENOENT"
    assert set(found.values()) <= REFUSED, found


def made_by_release_0_1(data_dir: Path) -> Path:
    """Makes a cluster as release 0.1 did, which trusts every client of its socket, and returns its pg_hba.conf."""
    postgres.ensure_running(data_dir)
    rules = data_dir / "postgres" / "data" / "pg_hba.conf"
    text = rules.read_text(encoding="utf-8")
    rules.write_text(text.replace(password.METHOD, "trust"), encoding="utf-8")
    (data_dir / "postgres" / password.FILE).unlink()
    postgres.stop(data_dir)
    return rules


def as_an_old_daemon_starts_it(data_dir: Path) -> None:
    base = data_dir / "postgres"
    started = postgres._start(base, server_account.choose(base / "data"))
    psycopg.connect(without_password(started.dsn)).close()


def without_password(dsn: str) -> str:
    return conninfo.make_conninfo(dsn, password="", passfile="/nonexistent")


@pytest.mark.parametrize("is_running", [True, False])
def test_an_embedded_server_that_trusted_everybody_is_moved_to_a_password(is_running: bool) -> None:
    with reachable_directory() as data_dir:
        try:
            rules = made_by_release_0_1(data_dir)
            if is_running:
                as_an_old_daemon_starts_it(data_dir)
            dsn = postgres.ensure_running(data_dir)
            psycopg.connect(dsn).close()
            with pytest.raises(psycopg.OperationalError, match="no password supplied"):
                psycopg.connect(without_password(dsn))
            assert not re.search(r"^[^#]*\btrust\b", rules.read_text(encoding="utf-8"), re.MULTILINE)
            secret = Path(str(conninfo.conninfo_to_dict(dsn)["passfile"]))
            assert secret.stat().st_mode & 0o077 == 0
            assert secret.read_text(encoding="ascii").rpartition(":")[2].strip() not in dsn
        finally:
            postgres.stop(data_dir)


def test_a_move_that_was_cut_off_is_completed_and_a_lost_password_is_explained() -> None:
    with reachable_directory() as data_dir:
        try:
            dsn = postgres.ensure_running(data_dir)
            base = data_dir / "postgres"
            (base / password.FILE).rename(base / password.UNFINISHED)
            assert postgres.ensure_running(data_dir) == dsn
            psycopg.connect(dsn).close()
            (base / password.FILE).unlink()
            with pytest.raises(EmbeddedError, match="password is gone") as caught:
                postgres.ensure_running(data_dir)
            assert "pg_hba.conf" in caught.value.remedy
        finally:
            postgres.stop(data_dir)


def test_a_directory_that_the_servers_account_names_is_not_removed(tmp_path: Path) -> None:
    """The server's account writes postmaster.pid, and root must not trust it."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "kept").touch()
    with reachable_directory() as data_dir:
        try:
            postgres.ensure_running(data_dir)
            pid_file = data_dir / "postgres" / "data" / "postmaster.pid"
            lines = pid_file.read_text(encoding="utf-8").splitlines()
            lines[4] = str(precious)
            pid_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        finally:
            assert postgres.stop(data_dir)
    assert (precious / "kept").exists()


@needs_root
@pytest.mark.parametrize("owned", ["nothing", "key", "data_dir", "database"])
def test_a_runner_user_that_owns_something_of_the_daemons_is_refused(tmp_path: Path, owned: str) -> None:
    host = Settings(data_dir=tmp_path, runner_user=JOBS_USER)
    database = tmp_path / "postgres" / "data"
    database.mkdir(parents=True)
    keyfile.add(tmp_path / "key", [keyfile.line(seal.generate())])
    places = {"key": tmp_path / "key", "data_dir": tmp_path, "database": database}
    runner_user.require(host)
    if owned != "nothing":
        os.chown(places[owned], pwd.getpwnam(JOBS_USER).pw_uid, -1)
        with pytest.raises(InvalidSettingsError, match=re.escape(str(places[owned]))):
            runner_user.require(host)


def test_a_runner_user_that_is_the_daemons_own_or_root_is_refused(
    start_daemon: StartDaemon, shop: Shop
) -> None:
    shop.job("true")
    own = pwd.getpwuid(os.geteuid()).pw_name
    for user in {own, "root"}:
        refused = start_daemon(env={"DATAFLOW_RUNNER_USER": user}, wait=False)
        assert refused.ended() == EXIT["INVALID_SETTINGS"]
        assert f"runner_user is {user}" in refused.log_path.read_text(encoding="utf-8")


def promise(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    [found] = [check for check in json.loads(done.stdout)["checks"] if check["check"] == "promise"]
    assert "\n" not in found["detail"]
    return dict(found)


def test_the_doctor_says_in_one_line_which_rows_hold(run_ctl: RunCtl, embedded_host: dict[str, str]) -> None:
    said = promise(run_ctl("doctor", "--json", "--no-spark"))
    assert said["state"] == "warning"
    assert said["detail"].startswith("holds for who can ")
    assert f"not for who can {JOB}: jobs run as {pwd.getpwuid(os.geteuid()).pw_name}" in said["detail"]
    assert "runner_user" in said["remedy"]
    embedded = promise(run_program("dataflowctl", "doctor", "--json", "--no-spark", env=embedded_host))
    assert f"not for who can {WRITE}: the embedded server runs here" in embedded["detail"]


@needs_root
def test_with_runner_user_and_a_closed_database_all_claims_of_the_page_hold(tmp_path: Path) -> None:
    with reachable_directory() as data_dir:
        try:
            address = conninfo.conninfo_to_dict(postgres.ensure_running(data_dir))
            known = Path(str(address.pop("passfile"))).read_text(encoding="ascii").strip().rpartition(":")[2]
            dsn = conninfo.make_conninfo(password=known, **address)  # type: ignore[arg-type]
            config = data_dir / "config.toml"
            config.write_text(f"dsn = {json.dumps(dsn)}\n", encoding="utf-8")
            env = {"DATAFLOW_DATA_DIR": str(tmp_path / "data"), "HOME": str(tmp_path)}
            env |= {"DATAFLOW_RUNNER_USER": JOBS_USER, "DATAFLOW_CONFIG": str(config)}
            words = ("doctor", "--json", "--no-spark")
            assert run_program("dataflowctl", "init", env=env).returncode == 0
            config.chmod(0o644)
            said = promise(run_program("dataflowctl", *words, env=env))
            assert f"{JOBS_USER} can read the DSN with its password in {config}" in said["detail"]
            config.chmod(0o600)
            said = promise(run_program("dataflowctl", *words, env=env))
            assert (said["state"], said["detail"]) == ("ok", f"holds for who can {', '.join(ROWS)}")
        finally:
            postgres.stop(data_dir)


def test_the_doctor_checks_the_claims_of_the_page() -> None:
    text = SECURITY.read_text(encoding="utf-8")
    table = text[text.index("| who can | achieves |") :].split("\n\n", 1)[0].splitlines()[2:]
    assert [line.split("|")[1].strip() for line in table] == list(ROWS)


SPARK_JOB = """
from dataflowd import Context, job
from dataflowd.host.passwords import password_of

@job
def work(ctx: Context) -> None:
    assert password_of(ctx.order.inputs["raw"].dataset) == "canary-of-the-key"
    with open(__file__ + ".tried", "w") as tried:
        try:
            tried.write(open({key!r}).read())
        except OSError as error:
            tried.write(type(error).__name__)
    ctx.spark.range(3).count()
"""
SPARK_FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "jdbc"
hostname = "localhost"
database = "bank"
tablename = "accounts"
username = "etl"
[dataset.clean]
format = "none"
[job.work]
python = "attack:work"
inputs = ["raw"]
outputs = ["clean"]
reuse = {reuse}
"""


@needs_root
@pytest.mark.parametrize("reuse", [1, 2])
def test_a_spark_job_of_runner_user_opens_passwords_by_a_key_that_stays_roots(
    connection: psycopg.Connection, dsn: str, settings: Settings, reuse: int
) -> None:
    """In a warm runner, and as a spark-submit of its own."""
    require_python_of(JOBS_USER)
    with reachable_directory() as directory, daemons(dsn, directory / "flow.toml", directory) as start:
        flows, key = directory / "flow.toml", directory / "dataflowd" / "key"
        flows.write_text(SPARK_FLOW.format(reuse=reuse), encoding="utf-8")
        (directory / "attack.py").write_text(SPARK_JOB.format(key=str(key)), encoding="utf-8")
        (directory / "attack.py.tried").touch()
        os.chown(directory / "attack.py.tried", pwd.getpwnam(JOBS_USER).pw_uid, -1)
        flow.apply(connection, flow.load(flows, settings))
        made = seal.generate()
        keyfile.add(key, [keyfile.line(made)])
        sealed = seal.seal("canary-of-the-key", made.public, seal.Binding("raw", "etl", "localhost", "bank"))
        connection.execute("UPDATE dataflow.dataset SET encryptedpass = %s WHERE datasetid = 'raw'", [sealed])
        connection.execute("SELECT dataflow.ready('raw', '1')")
        daemon = start(
            "--once",
            engine="spark",
            wait=False,
            env={"DATAFLOW_RUNNER_USER": JOBS_USER, "DATAFLOW_MASTER": "local[1]"},
        )
        assert daemon.ended(SPARK_SECONDS) == EXIT["FAILED"]
        # The script has ended and has written nothing.
        assert connection.execute("SELECT code FROM dataflow.attempt").fetchall() == [("NO_OUTPUT",)]
        assert (directory / "attack.py.tried").read_text(encoding="utf-8") == "PermissionError"
        assert key.stat().st_uid == 0
        assert not list((directory / "dataflowd" / "run").iterdir())


def test_rules_that_are_a_link_are_not_copied_for_the_servers_account(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("local all all trust # canary\n", encoding="utf-8")
    with reachable_directory() as data_dir:
        try:
            rules = made_by_release_0_1(data_dir)
            as_an_old_daemon_starts_it(data_dir)
            rules.unlink()
            rules.symlink_to(precious)
            with pytest.raises(EmbeddedError, match=r"pg_hba\.conf"):
                postgres.ensure_running(data_dir)
            assert [path.name for path in rules.parent.glob("*pg_hba*")] == [rules.name]
            assert rules.is_symlink()
        finally:
            postgres.stop(data_dir)
