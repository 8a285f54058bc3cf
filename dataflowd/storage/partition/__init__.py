"""Partitionings: a keyed source, split into batches.

`plan` names the batches, `files` and `table` find their boundaries, `batches` reads one of them again.
"""
