"""What `spark-submit` is given for `reuse = 1`: the same runner, in an application that Spark's own launcher has started."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # A script's directory stands first on the path, and the modules beside this one are not meant to.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
    from dataflowd.runner.__main__ import run

    run()
