"""An opened password is not sent to a server that asks for it in clear text, and stays in no process but the script."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest
from adbc_driver_postgresql import dbapi
from psycopg import conninfo

from dataflowd.host import keyfile, passwords, seal
from dataflowd.model.errors import InvalidCredentialError
from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import Connection, Dataset
from dataflowd.runner import output_filter, script
from dataflowd.storage.tables import catalog
from dataflowd.storage.tables.place import table_of
from tests.hostile.test_orders import document

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWORD = "hunter-2-canary"  # noqa: S105
KEY = seal.PrivateKey(seal.PLAIN, bytes(range(32)))
# Release 0.1.0 has sealed the password for etl@localhost/sales of the dataset orders, whatever the port.
WITHOUT_PORT = "dataflowd-sealed-v1.x25519.acfc31418dfc4a8f0e69309004f9e712.j1TGa-DmtTI39sbMazgG2XA0ol7gtJ5pI7-hnzRK1hQzvr5TEcB6d3ZPkzsfrYl9b69BjE_w9SZd98PH5lgvoOUwYnkVwLSNfpkYcWxo_sHOFI9ZTDFjANGAhdfUhFX8Q11-hwLA38mG2UttkwlW9A"
SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
WAIT_SECONDS = 60
LOGIN: dict[str, Any] = {
    "hostname": "localhost",
    "database": "sales",
    "username": "etl",
    "tablename": "orders",
}


class Listener:
    """A server that speaks enough of Postgres's protocol to ask for a password in clear text. Keeps the answer."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.socket.getsockname()[1])
        self.asked = 0
        self.heard = b""
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            with peer, peer.makefile("rb") as sent:
                self._ask(peer, sent)

    def _ask(self, peer: socket.socket, sent: BinaryIO) -> None:
        while head := sent.read(8):
            length, what = struct.unpack("!II", head)
            sent.read(length - 8)
            if what not in {SSL_REQUEST, GSS_REQUEST}:
                break
            peer.sendall(b"N")
        else:
            return
        self.asked += 1
        peer.sendall(b"R" + struct.pack("!II", 8, 3))
        if head := sent.read(5):
            [length] = struct.unpack("!I", head[1:])
            self.heard += head + sent.read(length - 4)

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    started = Listener()
    try:
        yield started
    finally:
        started.close()


@contextmanager
def key_offered(path: Path, monkeypatch: pytest.MonkeyPatch, **given: list[str]) -> Iterator[None]:
    keyfile.add(path / "key", [keyfile.line(KEY)])
    monkeypatch.setattr(passwords, "_ring", [])
    with passwords.offered(keyfile.KeySource(key_file=str(path / "key")), **given):
        yield


def orders(port: int, encryptedpass: str = WITHOUT_PORT) -> Dataset:
    return Dataset(
        name="orders",
        format="postgres",
        connection=Connection(port=port, encryptedpass=encryptedpass, **LOGIN),
    )


def test_a_server_on_another_port_asks_for_the_password_in_clear_text_and_does_not_get_it(
    listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody changed the port of a dataset in the database; the host is allowed."""
    with key_offered(tmp_path, monkeypatch):
        table = table_of(orders(listener.port), ["localhost"])
        assert table.login.password == PASSWORD
        with pytest.raises(AttemptError) as refused, catalog.connection(table):
            pass
        with pytest.raises(dbapi.Error):
            dbapi.connect(table.login.conninfo())
    assert listener.asked == 2
    assert listener.heard == b""
    assert refused.value.code == "NOT_ALLOWED"
    assert "asks for the password in clear text, and did not get it" in str(refused.value)
    assert PASSWORD not in str(refused.value)


def test_a_password_that_is_sealed_now_does_not_open_for_another_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = seal.seal(PASSWORD, KEY.public, seal.Binding("orders", "etl", "localhost", "sales", 5432))
    with key_offered(tmp_path, monkeypatch):
        assert table_of(orders(5432, sealed), ["localhost"]).login.password == PASSWORD
        with pytest.raises(InvalidCredentialError, match="does not open for etl@localhost:5433/sales"):
            table_of(orders(5433, sealed), ["localhost"])


def test_only_this_host_says_who_may_ask_in_clear_text_and_the_network_does_not_hear_it(
    listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with key_offered(tmp_path, monkeypatch, cleartext_hosts=[f"localhost:{listener.port}"]):
        table = table_of(orders(listener.port), ["localhost"])
        with pytest.raises(AttemptError), catalog.connection(table):
            pass
    far = replace(orders(5432).connection, hostname="db7", encryptedpass=None)
    with key_offered(tmp_path / "far", monkeypatch, cleartext_hosts=["db7"]):
        login = table_of(Dataset(name="far", format="postgres", connection=far), ["db7"]).login.conninfo()
    assert conninfo.conninfo_to_dict(login)["sslmode"] == "verify-full"
    assert PASSWORD.encode() in listener.heard


@contextmanager
def running(tmp_path: Path, key: seal.PrivateKey, text: str) -> Iterator[subprocess.Popen[bytes]]:
    """The process that has become this script, with a password; it reads the file `go` before it ends."""
    root, program = tmp_path / "root", tmp_path / "script.sh"
    (root / "data").mkdir(parents=True)
    (root / "data" / "part.csv").write_text("1\n")
    program.write_text(f"#!/bin/sh\n{text}\nread line < {tmp_path}/go\n")
    program.chmod(0o755)
    os.mkfifo(tmp_path / "go")
    source = keyfile.KeySource(key_file=str(tmp_path / "key"))
    keyfile.add(tmp_path / "key", [keyfile.line(key)])
    login = LOGIN | {
        "encryptedpass": seal.seal(PASSWORD, key.public, seal.Binding("raw", "etl", "localhost", "sales"))
    }
    order = document(root, outputs={}, **{"inputs.raw.dataset.connection": login})
    told = {"order": order, "before": [], "words": [str(program)], "env": {"PATH": os.environ["PATH"]}}
    given = os.memfd_create("order", 0)
    os.write(given, json.dumps(told | {"key": source.document()}).encode())
    os.lseek(given, 0, os.SEEK_SET)
    receive, send = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "dataflowd.runner.script", str(given), str(send)],
        pass_fds=(given, send),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        for handle in (given, send):
            os.close(handle)
        said = b""
        while select.select([receive], [], [], WAIT_SECONDS)[0] and (more := os.read(receive, 4096)):
            said += more
        # Its first line, and no error: the process has become the script.
        assert [list(json.loads(line)) for line in said.splitlines()] == [["found"]]
        assert PASSWORD.encode() not in said
        yield process
    finally:
        os.close(receive)
        (tmp_path / "go").write_text("go\n")
        process.communicate(timeout=WAIT_SECONDS)  # the filter of its output ends with it


def reader_of(pipe: str, besides: int) -> int:
    """The process at the other end of a pipe. Only root finds an undumpable process."""
    is_denied = False
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ends = {str(one.readlink()) for one in (path / "fd").iterdir()}
        except PermissionError:
            is_denied = True
        except OSError:
            continue
        else:
            if pipe in ends and int(path.name) != besides:
                return int(path.name)
    assert is_denied
    pytest.skip("needs root: the kernel lets nobody else look into the filter")


def memory_of(pid: int) -> bytes:
    """The memory of a process: all writable mappings, and all others that are no file."""
    found = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end = (int(one, 16) for one in line.split()[0].split("-"))
            if line.split()[1].startswith("rw") and not line.endswith("[vvar]"):
                memory.seek(start)
                found.append(memory.read(end - start))
    return b"\n".join(found)


def test_the_process_that_filters_a_scripts_output_has_neither_the_key_nor_the_password(
    tmp_path: Path,
) -> None:
    key = seal.generate(seal.PLAIN)
    with running(tmp_path, key, 'echo "it is $raw_password."\necho $raw_password\necho begun') as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(3)]
        assert said == [b"it is ***.\n", b"***\n", b"begun\n"]
        filtering = reader_of(str(Path(f"/proc/{process.pid}/fd/1").readlink()), process.pid)
        held = memory_of(filtering)
    assert len(held) > 1_000_000
    assert b"output_filter" in held
    assert PASSWORD.encode() not in held
    assert PASSWORD.encode()[::-1] not in held
    assert key.raw not in held
    assert base64.b64encode(key.raw) not in held


def test_the_filter_masks_a_password_that_it_does_not_know_wherever_it_is_cut(
    tmp_path: Path,
) -> None:
    known = output_filter.Recogniser.of(script.forms([PASSWORD, "a b/c\u00fc"]))
    for length, classes, tag in known.marks:
        assert length < 64
        assert 3 * len(classes) + 8 * len(tag) <= 50
        assert max(classes) < 8
    text = f"x{PASSWORD}{PASSWORD}y hunter-2 canar\n".encode() * 3 + f"{PASSWORD[:-1]} {PASSWORD}".encode()
    expected = text.replace(PASSWORD.encode(), b"***")
    for piece in (1, 7, len(PASSWORD), len(text)):
        path = tmp_path / f"filtered-{piece}"
        receive, send = os.pipe()
        with path.open("wb") as out:
            filtering = threading.Thread(target=output_filter.run, args=(receive, out.fileno(), known))
            filtering.start()
            for at in range(0, len(text), piece):
                os.write(send, text[at : at + piece])
            os.close(send)
            filtering.join()
        os.close(receive)
        assert path.read_bytes() == expected, piece


def test_a_line_without_an_end_is_filtered_too(tmp_path: Path) -> None:
    known = output_filter.Recogniser.of(script.forms([PASSWORD]))
    text = (b"z" * 70_001 + PASSWORD.encode()) * 30
    receive, send = os.pipe()
    with (tmp_path / "filtered").open("wb") as out:
        filtering = threading.Thread(target=output_filter.run, args=(receive, out.fileno(), known))
        filtering.start()
        view = memoryview(text)
        while view:
            view = view[os.write(send, view) :]
        os.close(send)
        filtering.join()
    os.close(receive)
    found = (tmp_path / "filtered").read_bytes()
    assert re.fullmatch(rb"(z{70001}\*{3}){30}", found)
