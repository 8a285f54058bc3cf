"""The code that the flows beside this file name. Checking a flow must not run it."""

if __name__:
    raise SystemExit("a check executed job code")


def clean_orders() -> None: ...
