"""`make audit`: asks a database for known vulnerabilities of every pinned version, and prints the result in one line.

`audit.py PIP_AUDIT [URL]`: with a URL it asks that OSV database, which may be a copy on your own network. Exit status 1 if there
are vulnerabilities. If the database cannot be reached, nothing is audited, a line says so, and the exit status is 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FILES = ("constraints.txt", "build.txt", "release.txt")


def main() -> None:
    program, url = sys.argv[1], "".join(sys.argv[2:3])
    files = [word for name in FILES for word in ("--requirement", str(HERE / name))]
    database = ["--vulnerability-service", "osv", "--osv-url", url] if url else []
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    ended = subprocess.run(  # noqa: S603 - the Makefile's own tool
        [program, *files, *database, *options], capture_output=True, text=True, check=False
    )
    try:
        found = json.loads(ended.stdout)["dependencies"]
    except ValueError:
        last = (ended.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        sys.exit(_say(f"audit: nothing was audited, the database cannot be reached: {last[:200]}"))
    audited = [one for one in found if "skip_reason" not in one]
    if not audited:
        sys.exit(_say("audit: nothing was audited, the database knows none of the packages"))
    known = [(one, each) for one in audited for each in one["vulns"]]
    for one, each in known:
        _say(
            f"{one['name']} {one['version']}: {each['id']}, repaired in {', '.join(each['fix_versions']) or 'no version yet'}"
        )
    _say(
        f"audit: {len(known)} known vulnerabilities; the database knows {len(audited)} of {len(found)} packages"
    )
    sys.exit(1 if known else 0)


def _say(line: str) -> int:
    sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    main()
