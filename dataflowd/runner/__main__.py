"""`python -m dataflowd.runner`: connects to the daemon that started it, starts Spark, and executes orders.

Orders run side by side, each in a thread; the main thread reads messages. When the daemon's end of the socket closes,
nobody waits for a result any more, and the process ends at once. To cancel an attempt, the runner cancels its Spark jobs by
tag and raises an exception in its thread. If the attempt goes on, the daemon ends the runner with signals.

The process owns its threads: all of them are daemon threads, and `run` ends the process without waiting for any.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import queue
import resource
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from dataflowd.model.endings import told_failed
from dataflowd.model.masking import hidden, mask
from dataflowd.model.work_order import Order
from dataflowd.runner import cpu, output, session, wire
from dataflowd.runner.explain import CancelledError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

KIB = 1024
SPARK_ENDED = 70
CANCEL_AGAIN_SECONDS = 0.5
STOPPED_SPARK = "the job has stopped Spark, which belongs to the runner: remove the call of stop()"


class Reporter:
    """Sends an attempt's messages to the daemon. Masks passwords before a text leaves the process."""

    def __init__(self, link: wire.Wire, attempt: int) -> None:
        self._link = link
        self._attempt = attempt
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def log(self, line: str) -> None:
        self._send("log", line=mask(line)[: wire.LOG_CHARACTERS])

    def progress(self, done: int, total: int | None) -> None:
        self._send("progress", done=done, total=total)

    def step(self, name: str) -> None:
        self._send("step", step=name)

    def found(self, document: dict[str, Any]) -> None:
        self._send("found", found=document)

    def confirm(self) -> bool:
        """Asks whether the attempt still holds its claim. The daemon answers when its database does, or cancels the attempt."""
        self._send("confirm")
        while True:
            # Python raises the exception of a cancellation only between two of its own steps, so the wait is cut into slices.
            with suppress(queue.Empty):
                return self._answers.get(timeout=CANCEL_AGAIN_SECONDS)

    def confirmed(self, *, alive: bool) -> None:
        self._answers.put(alive)

    def result(self, document: dict[str, Any]) -> None:
        try:
            self._send("result", result=_masked(document))
        except wire.WireError as error:
            self._send("result", result=told_failed("RESULT_TOO_LARGE", str(error)))

    def _send(self, kind: str, **values: Any) -> None:
        self._link.send({"type": kind, "attempt": self._attempt, **values})


def _masked(value: Any) -> Any:
    """Returns the value without the passwords that this process has opened. Names, numbers and locations stay."""
    match value:
        case str():
            return hidden(value)
        case dict():
            return {key: _masked(item) for key, item in value.items()}
        case list() | tuple():
            return [_masked(item) for item in value]
    return value


class Work:
    """One attempt in its thread."""

    def __init__(
        self, order: Order, spark: SparkSession, reporter: Reporter, slot: int, used: cpu.Shares
    ) -> None:
        self.order = order
        self.reporter = reporter
        self.slot = slot
        self.stop = threading.Event()
        self._spark = spark
        self._cpu = used
        self._own: SparkSession | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=order.tag, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """Cancels until the attempt has ended, because it may start another Spark job. Python code gets an exception."""
        self.stop.set()
        with self._lock:
            if not self._ended.is_set() and self._thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread.ident), ctypes.py_object(CancelledError)
                )
        while not self._ended.is_set():
            if self._own is not None:
                session.cancel(self._own, self.order.tag)
            self._ended.wait(CANCEL_AGAIN_SECONDS)

    def _run(self) -> None:
        from dataflowd.runner.execute import execute  # noqa: PLC0415 - see _preload

        began = time.monotonic()
        self._cpu.begin(self.order.attempt)
        with output.owned(self.reporter.log) as owner:
            try:
                self._own = self._session()
                result = execute(self.order, self._own, self.reporter, self.stop)
            except BaseException as error:  # noqa: BLE001 - an exception may be raised in this thread at any place
                result = told_failed("CANCELLED", f"stopped: {type(error).__name__}")
            with self._lock:
                self._ended.set()
            if self._own is not None:
                session.close(self._own)
            usage: dict[str, Any] = {
                "seconds": round(time.monotonic() - began, 3),
                "cpu_seconds": round(self._cpu.end(self.order.attempt), 3),
            }
            match session.state(self._spark):
                case "gone" if result["outcome"] == "FAILED":
                    # The error comes from the lost JVM, not from the job. The daemon finds that the runner has died.
                    os._exit(SPARK_ENDED)
                case "stopped":
                    usage["stopped_spark"] = True
                    self.reporter.log(STOPPED_SPARK)
                    if result["outcome"] == "FAILED":
                        result["error"] = f"{STOPPED_SPARK}\n{result['error']}"
            if left := owner.left_threads():
                usage["left_threads"] = left
                self.reporter.log(
                    f"warning the job returned and left threads running: {', '.join(left)}; join them before it returns"
                )
        self.reporter.result(result | {"usage": usage})

    def _session(self) -> SparkSession:
        """Makes a session for the attempt. Pools are named by slot, because Spark never forgets the name of a pool."""
        try:
            return session.for_attempt(self._spark, self.order.tag, f"slot {self.slot}")
        except Exception as error:  # noqa: BLE001 - after any error no attempt can run here any more
            _die(f"Spark cannot make a session: {error}")


def main() -> int:
    path, token = os.environ.pop(wire.SOCKET_VARIABLE), os.environ.pop(wire.TOKEN_VARIABLE)
    conf = json.loads(os.environ.pop(session.CONF_VARIABLE, "{}"))
    output.install()
    link = wire.Wire.connect(path, token, pid=os.getpid())
    threading.Thread(target=_preload, name="preload", daemon=True).start()
    spark = session.start(conf)
    link.send({"type": "ready", "version": spark.version})
    _end_with_jvm(spark)
    running: dict[int, Work] = {}
    used = cpu.Shares()
    for message in link.messages():
        match message["type"]:
            case "order":
                order = Order.parse(message["order"])
                slot = _free_slot(running)
                running[order.attempt] = Work(order, spark, Reporter(link, order.attempt), slot, used)
                running[order.attempt].start()
            case "confirmed":
                if message["attempt"] in running:
                    running[message["attempt"]].reporter.confirmed(alive=message["alive"])
            case "forget":
                running.pop(message["attempt"], None)
            case "cancel":
                if message["attempt"] in running:
                    threading.Thread(target=running[message["attempt"]].cancel, daemon=True).start()
            case "ping":
                link.send({"type": "pong", **_probe(spark), "max_rss": _max_rss()})
            case "stop":
                spark.stop()
                return 0
            case unknown:
                sys.stderr.write(f"unknown message {unknown!r}\n")
    return 0


def _preload() -> None:
    """Imports modules while Spark starts: the main thread then mostly waits for the JVM."""
    import dataflowd.runner.execute  # noqa: F401, PLC0415


def _free_slot(running: Mapping[int, Work]) -> int:
    taken = {work.slot for work in running.values()}
    return next(slot for slot in itertools.count() if slot not in taken)


def _probe(spark: SparkSession) -> dict[str, int]:
    try:
        return session.probe(spark)
    except Exception as error:  # noqa: BLE001 - a runner whose Spark does not answer is of no use
        _die(f"Spark does not answer: {error}")


def _end_with_jvm(spark: SparkSession) -> None:
    """Ends this process when its JVM ends, because every further attempt would fail."""
    jvm = session.jvm(spark)
    if jvm is not None:

        def wait() -> None:
            jvm.wait()
            os._exit(SPARK_ENDED)

        threading.Thread(target=wait, name="jvm", daemon=True).start()


def _die(why: str) -> NoReturn:
    sys.stderr.write(mask(f"{why}\n"))
    sys.stderr.flush()
    os._exit(SPARK_ENDED)


def _max_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def run() -> None:
    status = main()
    sys.stdout.flush()
    # Threads that job code has left must not keep the process alive.
    os._exit(status)


if __name__ == "__main__":
    run()
