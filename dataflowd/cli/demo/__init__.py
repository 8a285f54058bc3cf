"""`dataflowd demo`: the quickstart as a story of a minute, on a Postgres and a Java of its own.

A month of orders comes as a file a day; one file is missing and one is wrong. The daemon works through the rest while the
terminal shows it, the concurrency is changed on the way, `why` explains what is missing, the two files are repaired, and
the month is made. Nothing here is played: `story` runs the same commands that a person types, in processes of their
own, and shows what the same SQL functions say as `dataflowctl status` and `chunks --map`.

`place` is the directory that all of it lives in, `programs` are the processes, `frame` is what a moment looks like, and
`screen` brings it to a terminal or, line by line, to anything else.
"""
