"""`dataflowctl doctor`: finds out, before a run does, what would stop it.

`checks` looks at the host and its database, `keys` at keys and sealed passwords, `unit` at a systemd unit, `attackers`
at which promises of docs/security.md hold here; `command` prints it.
"""
