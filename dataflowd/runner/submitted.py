"""The application that `spark-submit` starts for `reuse = 1`: the same runner, started by Spark's own launcher."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts a script's directory first on the path; the modules beside this one must not be imported from there.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
    from dataflowd.runner.__main__ import run

    run()
