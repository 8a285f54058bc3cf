"""Another host of the network, or another user of this host, connects to the Spark of a runner."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import socket
import struct
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest

from dataflowd.engine.runner import Pending, started_alone
from dataflowd.flow import load
from dataflowd.flow.compose import environment
from dataflowd.host import supervise
from dataflowd.host.embedded import java
from dataflowd.model.work_order import Dataset, Order, Output
from dataflowd.runner import protection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dataflowd.host.settings import Settings

PATIENCE_SECONDS = 180.0
ANSWER_SECONDS = 10.0
RPC_REQUEST, RPC_RESPONSE, STREAM_REQUEST, STREAM_RESPONSE = 3, 4, 6, 7  # kinds of Spark's messages
TOLD = "the attackers know all that the job knows"
IN_ARGV = "canary-that-no-argument-holds"
FLOW = """
[flow]
name = "shop"
[dataset.made]
location = "{root}/made"
[dataset.asked]
format = "none"
[job.look]
python = "looking:look"
inputs = ["asked"]
outputs = ["made"]
"""
# Settings that a flow could have by mistake or for convenience, and a secret that only its job may know.
OPEN = {
    "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104 - the attack
    "spark.driver.host": socket.gethostname(),
    "spark.authenticate": "false",
    "spark.authenticate.secret": "known to all",
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.driver.memory": "600m",
    "spark.hadoop.fs.s3a.secret.key": IN_ARGV,
}
# The job helps the attackers: it reveals its secret, adds a file, and builds a message as Spark does.
LOOKING = """
import base64, json, time
from pathlib import Path
from pyspark.sql import functions as F
from dataflowd import job

HERE = Path(__file__).parent

@job
def look(ctx):
    context = ctx.spark.sparkContext
    jvm = context._jvm
    context.addFile(str(HERE / "canary.txt"))
    ctx.write("made", ctx.spark.range(4).select(F.udf(lambda n: str(n))("id").alias("n")))
    question = getattr(jvm.org.apache.spark.rpc.netty, "RpcEndpointVerifier$CheckExistence")("HeartbeatReceiver")
    made = jvm.java.io.ByteArrayOutputStream()
    jvm.java.io.ObjectOutputStream(made).writeObject(question)
    kept = jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getCredentials()
    told = {
        "secret": bytes(kept.getSecretKey(jvm.org.apache.hadoop.io.Text("sparkCookie")) or b"").decode(),
        "question": base64.b64encode(bytes(made.toByteArray())).decode(),
        "ui": context.uiWebUrl,
        "conf": dict(context.getConf().getAll()),
    }
    (HERE / "told").write_text(json.dumps(told))
    print(TOLD)
    while not (HERE / "enough").exists():
        time.sleep(0.1)
"""


class Listening(NamedTuple):
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int


def listening(pids: list[int]) -> set[Listening]:
    """The listening TCP sockets of these processes, from /proc."""
    inodes = {inode for pid in pids for inode in _socket_inodes(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                words, port = fields[1].split(":")
                # Groups of four bytes; each group is in the byte order of this machine.
                packed = b"".join(
                    struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8)
                )
                address = ipaddress.ip_address(packed)
                mapped = getattr(address, "ipv4_mapped", None)
                found.add(Listening(mapped or address, int(port, 16)))
    return found


def _socket_inodes(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield target.removeprefix("socket:[").removesuffix("]")


def asked(place: Listening, kind: int, body: bytes) -> int | None:
    """The kind of the answer to a message without authentication; None if there is no answer."""
    message = bytes([kind]) + body
    with (
        suppress(OSError),
        socket.create_connection((str(place.address), place.port), ANSWER_SECONDS) as line,
    ):
        line.settimeout(ANSWER_SECONDS)
        line.sendall(struct.pack(">Q", 8 + len(message)) + message)
        answer = b""
        while len(answer) < 9 and (more := line.recv(4096)):
            answer += more
        return answer[8] if len(answer) >= 9 else None
    return None


def call(question: bytes, place: Listening) -> bytes:
    """A call without a sender to an endpoint that every Spark has at this address."""
    host, name = str(place.address).encode(), b"endpoint-verifier"
    head = b"\0" + b"\1" + struct.pack(">H", len(host)) + host + struct.pack(">I", place.port)
    content = head + struct.pack(">H", len(name)) + name + question
    return struct.pack(">QI", 1, len(content)) + content


def shown(pids: list[int], directories: list[Path]) -> Iterator[tuple[str, bytes]]:
    """The arguments and environments of the processes, and the content of every file."""
    for pid in pids:
        for part in ("cmdline", "environ"):
            with suppress(OSError):
                yield f"{part} of {pid}", Path(f"/proc/{pid}/{part}").read_bytes()
    for directory in directories:
        for path in directory.rglob("*"):
            if path.is_file():
                yield str(path), path.read_bytes()


@pytest.mark.parametrize("reuse", [1, 2], ids=["submitted", "warm"])
async def test_nobody_but_the_runner_speaks_to_its_spark(
    settings: Settings, tmp_path: Path, reuse: int
) -> None:
    settings = settings.model_copy(update={"data_dir": tmp_path / "data", "master": "local[1]"})
    code = tmp_path / "flow"
    code.mkdir()
    (code / "looking.py").write_text(LOOKING.replace("TOLD", repr(TOLD)), encoding="utf-8")
    (code / "canary.txt").write_text("canary", encoding="utf-8")
    (code / "flow.toml").write_text(FLOW, encoding="utf-8")
    order = Order(
        attempt=7,
        jobid="look",
        dataid="d1",
        tag="dataflow-test",
        code="looking:look",
        directory=str(code),
        inputs={},
        outputs={"made": Output(dataset=Dataset(name="made"), location=str(tmp_path / "made"))},
        allowed_roots=(str(tmp_path),),
    )
    heard = anyio.Event()

    def on_message(message: dict[str, Any]) -> None:
        if message.get("line") == TOLD:
            heard.set()

    variables = environment(load(code / "flow.toml", settings), java.environment(java.find(settings)))
    async with started_alone(settings, OPEN, variables, reuse=reuse) as runner:
        pending = runner.pending[order.attempt] = Pending(on_message)
        with anyio.fail_after(PATIENCE_SECONDS):
            assert await runner.ready(), runner.how
            await runner.send({"type": "order", "order": order.document()})
            await heard.wait()
        told = json.loads((code / "told").read_bytes())
        assert runner.pid is not None
        pids = [runner.pid, *supervise.alive_in_session(runner.pid)]
        await asyncio.to_thread(attack, pids, told, tmp_path)
        (code / "enough").touch()
        with anyio.fail_after(PATIENCE_SECONDS):
            await pending.ended.wait()
        assert pending.result is not None
        assert pending.result["outcome"] == "DONE"


def attack(pids: list[int], told: Mapping[str, object], directory: Path) -> None:
    places = listening(pids)
    assert len(places) >= 3, "Spark's driver, its block manager and its UI listen"
    assert {place for place in places if not place.address.is_loopback} == set()
    question = base64.b64decode(str(told["question"]))
    name = b"/files/canary.txt"
    answers = {
        *(asked(place, RPC_REQUEST, call(question, place)) for place in places),
        *(asked(place, STREAM_REQUEST, struct.pack(">I", len(name)) + name) for place in places),
    }
    assert not answers & {RPC_RESPONSE, STREAM_RESPONSE}
    secret = str(told["secret"])
    assert len(secret) >= 64, "Spark draws 256 bits"
    page = urllib.request.urlopen(f"{told['ui']}/environment/", timeout=ANSWER_SECONDS).read()  # noqa: S310 - the runner's own page
    assert b"spark.authenticate" in page
    assert secret.encode() not in page
    assert secret not in json.dumps(told["conf"])
    kept = [directory / "data"]
    assert [place for place, text in shown(pids, kept) if secret.encode() in text] == []
    seen = [place for place, text in shown(pids, []) if IN_ARGV.encode() in text]
    assert seen == [], "a flow's configuration is in a file of the runner's own, and nowhere else"


def test_a_cluster_is_authenticated_and_encrypted_unless_somebody_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for master in ("yarn", "k8s://https://cluster.example:6443"):
        assert protection.applied({}, master) == protection.CLUSTER
        assert protection.applied({"spark.authenticate": "false"}, master) == {"spark.authenticate": "false"}
    assert protection.applied({}, "spark://master.example:7077") == {}
    (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.io.encryption.enabled=false\n")
    assert "spark.io.encryption.enabled" not in protection.applied({}, "yarn")
    (tmp_path / "spark-defaults.conf").write_text("spark.authenticate   false\n")
    assert protection.applied({}, "yarn") == {}


def test_the_doctor_says_what_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))

    def found(master: str, version: str = "4.2.1", **flow: str) -> list[str]:
        return [detail for detail, _ in protection.openings(master, flow, version)]

    authentication, network, disk = found("spark://master.example:7077")
    assert "no authentication" in authentication
    assert "not encrypted" in network
    assert "spill" in disk
    assert found("yarn") == []
    assert found("local[*]") == []
    [leak] = found("yarn", "4.3.0")
    assert "Spark 4.3.0 answers requests for files" in leak
    [connect] = found("sc://spark.example:15002")
    assert "neither encrypted" in connect
    assert found("sc://spark.example:15002/;use_ssl=true;token=x") == []
    assert found("sc://localhost") == []
    secure = "spark.authenticate true\nspark.network.crypto.enabled true\nspark.io.encryption.enabled true\n"
    (tmp_path / "spark-defaults.conf").write_text(secure)
    assert found("spark://master.example:7077") == []
