"""`dataflowctl doctor`: finds what would stop a run, before a run meets it.

`checks` examines the host and its database, `keys` the keys and sealed passwords, `unit` a systemd unit, and `attackers` which
promises of docs/security.md hold on this host. `command` prints the findings.
"""
