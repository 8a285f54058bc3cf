"""`dataflowd demo`: runs the quickstart in about a minute, on an embedded Postgres and Java.

A month of orders comes as one file a day; one file is missing and one is wrong. The daemon processes the others while the
terminal shows it, the concurrency is changed meanwhile, `why` explains what is missing, the two files are repaired, and the
month is made. Nothing is simulated: `story` runs the commands that a person types, each in a process of its own, and shows
what the SQL functions behind `dataflowctl status` and `chunks --map` return.

`place` is the directory of the demo, `programs` are its processes, `frame` makes the lines of a moment, and `screen` draws
them on a terminal or writes them line by line to anything else.
"""
