"""The runner: the process that executes attempts on Spark. `python -m dataflowd.runner` is started by the daemon.

This room knows how one attempt is prepared, run, checked and reported, on Spark (`execute`) or as a script (`script`). It has
no connection to the control database and no credentials for it: a runner receives an order and answers with a result.
"""
