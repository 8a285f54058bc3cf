"""The commands `dataflowd` and `dataflowctl`, the doctor and the demo.

This room knows how to ask a person and how to show an answer. It decides nothing about readiness, locks or transitions:
a command calls a named query of sql/queries.sql, or a service of the daemon. Nothing imports this room.
"""
