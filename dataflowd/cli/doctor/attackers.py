"""Finds which rows of the table of attackers in docs/security.md hold on this host, and why the others do not.

What the programs themselves protect holds everywhere. What job code can reach depends on the user that runs it, and on where
the DSN and the password of the control database are stored.
"""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from psycopg import conninfo

from dataflowd.database import db
from dataflowd.host import runner_user
from dataflowd.model.errors import DataflowError, InvalidSettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from dataflowd.host.settings import Loaded, Settings

READ = "read the database"
WRITE = "write everything in it"
JOB = "run a job's code"
ROOT = "be root on a host that runs jobs"
ROWS = (READ, WRITE, JOB, ROOT)  # as docs/security.md names them
REMEDIES = {
    WRITE: "let DATAFLOW_DSN name a Postgres on a host without jobs",
    JOB: "run the daemon as root with runner_user, a user that owns nothing of the daemon's",
}
SYSTEM_USER_VERSION = 160000


def judged(loaded: Loaded) -> tuple[Literal["ok", "warning", "failed", "skipped"], str, str]:
    """Returns state, line and remedy of the finding."""
    if loaded.settings.runner_user and os.geteuid() != 0:
        return "skipped", "runner_user is set: only root, who runs the daemon, can tell", ""
    try:
        runner_user.require(loaded.settings)
    except InvalidSettingsError as error:
        return "failed", error.message, error.remedy
    broken = {row: reasons for row in ROWS if (reasons := list(_reasons(row, loaded)))}
    holding = ", ".join(row for row in ROWS if row not in broken)
    lines = [f"not for who can {row}: {'; '.join(reasons)}" for row, reasons in broken.items()]
    line = " | ".join([f"holds for who can {holding}", *lines])
    return "warning" if broken else "ok", line, "; ".join(REMEDIES[row] for row in broken)


def _reasons(row: str, loaded: Loaded) -> Iterator[str]:
    settings = loaded.settings
    if row == WRITE and settings.dsn is None:
        yield f"the embedded server runs here, and its superuser starts programs as {_embedded_user(settings)}"
    if row == JOB:
        if not settings.runner_user:
            yield from _without_runner_user(settings)
        yield from _ways_into_the_database(loaded)


def _without_runner_user(settings: Settings) -> Iterator[str]:
    user = _name(os.geteuid())
    if os.geteuid() == 0:
        yield "jobs run as root, who reads the daemon's memory and every file"
        return
    yield f"jobs run as {user}, the daemon's own user: its memory is closed to them, the files of {user} are not"
    if settings.dsn is None:
        yield f"{user} owns the embedded database"


def _ways_into_the_database(loaded: Loaded) -> Iterator[str]:
    settings, user = loaded.settings, loaded.settings.runner_user or _name(os.geteuid())
    if user == _name(0) or settings.dsn is None:
        return  # root reads everything, and the embedded database belongs to its user; both are reported already
    dsn = conninfo.conninfo_to_dict(settings.dsn.get_secret_value())
    file = Path(loaded.origins["dsn"].rpartition(":")[0])
    if dsn.get("password") and file.is_file() and _may_read(user, file):
        yield f"{user} can read the DSN with its password in {file}"
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(db.connect(settings, "dataflowd doctor"))
        except DataflowError:
            return  # another check has reported it
        if connection.pgconn.used_password:
            return
        if not settings.runner_user:
            yield f"the database lets {user} in without a password"
        elif _trusts(connection):
            yield "the database lets everybody in without a password"


def _trusts(connection: psycopg.Connection) -> bool:
    """Whether the server lets this user in without a proof. Servers before Postgres 16 do not tell."""
    if connection.info.server_version < SYSTEM_USER_VERSION:
        return True
    row = connection.execute(db.query("doctor_login")).fetchone()
    return row is None or row[0] is None


def _may_read(user: str, file: Path) -> bool:
    """Whether a user may read a file, by the owners and modes of the file and of all directories above it."""
    entry = pwd.getpwnam(user)
    groups = os.getgrouplist(user, entry.pw_gid)
    wanted = [(parent, stat.S_IXOTH) for parent in file.resolve().parents] + [(file, stat.S_IROTH)]
    for path, other in wanted:
        found = path.stat()
        if found.st_uid == entry.pw_uid:
            bit = other << 6
        elif found.st_gid in groups:
            bit = other << 3
        else:
            bit = other
        if not found.st_mode & bit:
            return False
    return True


def _embedded_user(settings: Settings) -> str:
    from dataflowd.host.embedded import account as embedded  # noqa: PLC0415 - only where the embedded Postgres is asked about

    return _name(embedded.choose(settings.data_dir / "postgres" / "data").uid)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
