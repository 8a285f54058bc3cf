"""Job code that the flow files in this directory name. Checking a flow file must not run this code."""

if __name__:
    raise SystemExit("a check executed job code")


def clean_orders() -> None: ...
