"""The runner: the process that executes attempts on Spark. `python -m dataflowd.runner` is started by the daemon."""
