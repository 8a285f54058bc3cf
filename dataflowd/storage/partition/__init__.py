"""Partitionings: a keyed source, split into batches.

`plan` names the batches, `files` and `table` find their boundaries, and `batches` reads batches of files.
"""
