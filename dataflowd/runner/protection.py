"""Configures who may connect to a runner's Spark: where Spark listens, whom it answers, and what it encrypts.

With a local master nobody but the runner needs to connect: Spark listens on loopback alone and demands a secret. Spark
itself draws that secret for each application and keeps it in the memory of the JVM, so that no file, argument, variable
or page shows it. On YARN and Kubernetes Spark draws a secret too and hands it to the executors; there authentication and
encryption are the default, which a flow or the host's spark-defaults.conf may change. A standalone cluster has a secret of
its own, which stands in spark-defaults.conf. Whoever runs a Connect server protects it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOOPBACK = "127.0.0.1"
AUTHENTICATE = "spark.authenticate"
ENCRYPT = "spark.network.crypto.enabled"
TLS = "spark.ssl.rpc.enabled"
ENCRYPT_DISK = "spark.io.encryption.enabled"
LOCAL = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    # For a Connect server that a flow may start inside its runner.
    "spark.connect.grpc.binding.address": LOOPBACK,
    AUTHENTICATE: "true",
}
CLUSTER = {AUTHENTICATE: "true", ENCRYPT: "true", ENCRYPT_DISK: "true"}
# These versions of Spark send a file or a jar of an application to anybody who asks, authenticated or not.
LEAKING_VERSIONS = ("4.2.0", "4.3.0")
HERE = ("localhost", LOOPBACK, "::1")

_PROPERTY = re.compile(r"\s*(?P<name>[^\s=:#!][^\s=:]*)\s*[=:\s]\s*(?P<value>.*?)\s*")


def is_local(master: str) -> bool:
    """Whether driver and executors are one process. `local-cluster[...]` starts more processes."""
    return master == "local" or master.startswith("local[")


def applied(flow: Mapping[str, str], master: str) -> dict[str, str]:
    """Returns the flow's configuration with the settings that protect Spark."""
    if is_local(master):
        # A secret in the flow would replace the secret that Spark draws.
        own = {name: value for name, value in flow.items() if not name.startswith(f"{AUTHENTICATE}.")}
        return own | LOCAL
    return _defaults(flow, master) | dict(flow)


def variables(master: str) -> dict[str, str]:
    """Returns the environment variable that keeps Spark's UI, if a flow switches it on, on loopback."""
    return {"SPARK_LOCAL_IP": LOOPBACK} if is_local(master) else {}


def host_defaults() -> dict[str, str]:
    """Returns the settings in this host's spark-defaults.conf. Spark applies the file itself; here it is only inspected."""
    try:
        lines = (_conf_directory() / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {found["name"]: found["value"] for found in map(_PROPERTY.fullmatch, lines) if found}


def openings(master: str, flow: Mapping[str, str], version: str) -> Iterator[tuple[str, str]]:
    """Yields what is unprotected with this master, each with its remedy."""
    if urlsplit(master).scheme == "sc":
        yield from _connect_openings(master)
    elif not is_local(master):
        yield from _cluster_openings(master, flow, version)


def _cluster_openings(master: str, flow: Mapping[str, str], version: str) -> Iterator[tuple[str, str]]:
    conf = host_defaults() | applied(flow, master)
    place = _conf_directory() / "spark-defaults.conf"
    if not _is_on(conf, AUTHENTICATE):
        secret = "" if _draws_secret(master) else f" and the cluster's {AUTHENTICATE}.secret"
        yield (
            "driver and executors obey anybody who reaches their ports: there is no authentication",
            f"set {AUTHENTICATE} true{secret} in {place}, and the same in the cluster",
        )
    elif version in LEAKING_VERSIONS:
        yield (
            f"Spark {version} answers requests for files of a running application before it knows who asks",
            "use Spark 4.2.1, or a version after 4.3.0",
        )
    if not (_is_on(conf, ENCRYPT) or _is_on(conf, TLS)):
        yield (
            "what driver and executors send each other is not encrypted",
            f"set {ENCRYPT} true in {place}, and the same in the cluster",
        )
    if not _is_on(conf, ENCRYPT_DISK):
        yield (
            "shuffle and spill files of the executors are not encrypted",
            f"set {ENCRYPT_DISK} true in {place}",
        )


def _connect_openings(master: str) -> Iterator[tuple[str, str]]:
    found = urlsplit(master)
    parameters = dict(part.partition("=")[::2] for part in found.path.lstrip("/").split(";"))
    if found.hostname in HERE or parameters.get("use_ssl") == "true" or "token" in parameters:
        return
    yield (
        "the connection to the Connect server is neither encrypted nor authenticated",
        "put TLS before the server, and ;use_ssl=true;token=... behind the master's address",
    )


def _defaults(flow: Mapping[str, str], master: str) -> dict[str, str]:
    """Returns the defaults that neither host nor flow overrides. None without authentication: Spark then refuses encryption."""
    configured = host_defaults() | dict(flow)
    if not _draws_secret(master) or not _is_on({AUTHENTICATE: "true"} | configured, AUTHENTICATE):
        return {}
    return {name: value for name, value in CLUSTER.items() if name not in configured}


def _draws_secret(master: str) -> bool:
    return master == "yarn" or master.startswith("k8s://")


def _is_on(conf: Mapping[str, str], name: str) -> bool:
    return conf.get(name, "false").strip().lower() == "true"


def _conf_directory() -> Path:
    import pyspark  # noqa: PLC0415 - only its directory is needed

    return Path(os.environ.get("SPARK_CONF_DIR") or Path(pyspark.__file__).parent / "conf")
