"""The units under another systemd: systemd-nspawn boots a small root with /usr of this host.

The root is laid out as docs/deploy.md says: user, directories, units, drop-ins, settings. A service inside types the commands of
an administrator, and writes the results to a file.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 480
ENOUGH_SYSTEMD = 253
LINKS = ("bin", "sbin", "lib", "lib64")
KEPT_OF_ETC = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")
# The Python of /usr, because the unit cannot see home directories.
PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"

CONFIG = """
flows = ["/srv/flows/shop/flow.toml"]
root = "/srv/data"
environment = "prod"
engine = "process"
"""
FLOW = """
[flow]
name = "shop"
[dataset.raw]
format = "none"
[dataset.out]
format = "csv"
location = "{root}/out"
[job.work]
command = ["sh", "-c", 'echo "$dataid,1" > "$out_location/part.csv"']
inputs = ["raw"]
outputs = ["out"]
"""
PROGRAM = """#!/opt/dataflowd/bin/python
import sys
from MODULE import main
sys.exit(main())
"""
# The file that an editable installation writes.
POINTER = "_editable_impl_dataflowd.pth"
# Each line of /var/seen is a command and its result.
ADMINISTRATOR = """#!/bin/sh
PATH=/opt/dataflowd/bin:/usr/bin:/usr/sbin:/bin
as_daemon() { setpriv --reuid=dataflowd --regid=dataflowd --clear-groups env HOME=/var/lib/dataflowd DATAFLOW_DATA_DIR=/var/lib/dataflowd "$@"; }
say() { echo "$*" >> /var/seen; }
mkdir -p /srv/data; chown dataflowd: /srv/data
cd /var/lib/dataflowd
as_daemon dataflowctl init >> /var/log/administrator 2>&1; say "init $?"
as_daemon dataflowctl apply /srv/flows/shop/flow.toml --yes >> /var/log/administrator 2>&1; say "apply $?"
for unit in dataflowd dataflowd@blue; do
    mv /etc/systemd/system/$(echo $unit | sed 's/@.*/@/').service.d/data.conf /var/; systemctl daemon-reload
    dataflowctl doctor --unit $unit >> /var/log/administrator 2>&1; say "$unit without data.conf: doctor $?"
    mv /var/data.conf /etc/systemd/system/$(echo $unit | sed 's/@.*/@/').service.d/; systemctl daemon-reload
    dataflowctl doctor --unit $unit >> /var/log/administrator 2>&1; say "$unit: doctor $?"
    systemctl start $unit; say "$unit: start $? $(systemctl show $unit -P ActiveState)"
    as_daemon dataflowctl ready raw ${unit#*@} >> /var/log/administrator 2>&1
    for i in $(seq 40); do
        [ -n "$(find /srv/data -name part.csv -newer /var/seen)" ] && break; sleep 1
    done
    say "$unit: wrote $(find /srv/data -name part.csv -newer /var/seen | wc -l)"
    systemctl reload $unit; say "$unit: reload $? $(systemctl show $unit -P ActiveState)"
    systemctl stop $unit; say "$unit: stop $? $(systemctl show $unit -P Result)"
done
journalctl --no-pager -u 'dataflowd*' >> /var/log/administrator 2>&1
say end
systemctl poweroff --force
"""
SERVICE = """
[Unit]
After=systemd-sysusers.service systemd-tmpfiles-setup.service
[Service]
Type=simple
ExecStart=/opt/administrator
[Install]
WantedBy=multi-user.target
"""

needs_boot = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-nspawn") is None or not Path(PYTHON).exists(),
    reason="needs root, systemd-nspawn and a Python of this version in /usr",
)


def systemd_version() -> int:
    said = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.split()[1])


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def packages(root: Path) -> Path:
    return root / f"opt/dataflowd/lib/{Path(PYTHON).name}/site-packages"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root directory of a host, laid out as docs/deploy.md says."""
    made = tmp_path / "root"
    for name in (
        "usr",
        "etc",
        "var",
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "root",
        "srv",
        "opt/site",
        "opt/checkout",
    ):
        (made / name).mkdir(parents=True)
    for name in LINKS:
        (made / name).symlink_to(f"usr/{name}")
    for name in KEPT_OF_ETC:
        there, here = Path("/etc") / name, made / "etc" / name
        if there.is_dir():
            shutil.copytree(there, here)
        elif there.exists():
            shutil.copy(there, here)
    (made / "etc/machine-id").touch()
    units = made / "etc/systemd/system"
    shutil.copytree(ROOT / "systemd", made / "opt/systemd")
    for kind in ("sysusers", "tmpfiles"):
        write(made / f"etc/{kind}.d/dataflowd.conf", (ROOT / f"systemd/dataflowd.{kind}").read_text())
    for name in ("dataflowd.service", "dataflowd@.service"):
        write(units / name, (ROOT / "systemd" / name).read_text())
        for drop_in in ("data.conf", *(["before-253.conf"] if systemd_version() < ENOUGH_SYSTEMD else [])):
            write(units / f"{name}.d" / drop_in, (ROOT / "systemd" / drop_in).read_text())
    write(made / "etc/dataflowd/config.toml", CONFIG)
    write(made / "etc/dataflowd/environment", "")
    write(made / "etc/dataflowd/blue.environment", "DATAFLOW_HTTP_PORT=9465\n")
    write(made / "srv/flows/shop/flow.toml", FLOW)
    programs = made / "opt/dataflowd"
    for name, module in (
        ("dataflowd", "dataflowd.cli.dataflowd"),
        ("dataflowctl", "dataflowd.cli.dataflowctl"),
    ):
        write(programs / "bin" / name, PROGRAM.replace("MODULE", module), 0o755)
    (programs / "bin/python").symlink_to(PYTHON)
    write(programs / "pyvenv.cfg", "home = /usr/bin\n")
    packages(made).mkdir(parents=True)
    write(made / POINTER, "/opt/checkout")
    write(made / "opt/administrator", ADMINISTRATOR, 0o755)
    write(units / "administrator.service", SERVICE)
    wanted = units / "multi-user.target.wants"
    wanted.mkdir()
    (wanted / "administrator.service").symlink_to("/etc/systemd/system/administrator.service")
    made.chmod(0o755)
    return made


@needs_boot
def test_the_units_start_run_a_job_reload_and_stop_as_the_page_lays_them_out(root: Path) -> None:
    boot = " && ".join(
        [
            f"mount --bind -o ro /usr {root}/usr",
            f"mount --bind -o ro {site.getsitepackages()[0]} {packages(root)}",
            f"mount --bind {root}/{POINTER} {packages(root)}/{POINTER}",
            f"mount --bind -o ro {ROOT} {root}/opt/checkout",
            f"exec systemd-nspawn --directory={root} --machine=dataflowd-{os.getpid()} --register=no --keep-unit --quiet --boot systemd.unit=multi-user.target",
        ]
    )
    booted = subprocess.run(
        ["unshare", "--mount", "sh", "-c", boot],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    seen = root / "var/seen"
    assert seen.exists(), booted.stdout[-2000:] + booted.stderr[-2000:]
    log = (root / "var/log/administrator").read_text(encoding="utf-8", errors="replace")
    each = [
        line
        for unit in ("dataflowd", "dataflowd@blue")
        for line in (
            f"{unit} without data.conf: doctor 1",
            f"{unit}: doctor 0",
            f"{unit}: start 0 active",
            f"{unit}: wrote 1",
            f"{unit}: reload 0 active",
            f"{unit}: stop 0 success",
        )
    ]
    assert seen.read_text().splitlines() == ["init 0", "apply 0", *each, "end"], log[-6000:]
    assert "/srv/data is read-only for the unit by ProtectSystem=strict" in log
