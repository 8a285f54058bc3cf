"""Tables in Postgres as datasets: chunks are rows, read and written by Spark over ADBC, and replaced in one transaction.

A chunk of a table is the rows whose `dataid_column` equals the dataid. The table may be in any database, so its rows and
the status in the control database cannot change in one transaction. The order of the two, and a ledger beside the table
(`dataflow_published`: fence and attempt for each chunk), make them as good as one:

1. Prepare takes the fence: the ledger's `fence` rises to this attempt's number, and never falls. From here on no older
   attempt can replace the rows. Staging tables that the ledger shows to be outdated are dropped.
2. The job's rows go to a staging table of this attempt alone (`<table>__attempt_<n>`, marked by a comment), from the
   executors, by COPY. Checks look at it. Nobody else sees it.
3. Publish is one transaction on the target: the ledger's row is locked, and the fence must still be this attempt's; the
   chunk's rows are deleted and the staged ones inserted, exactly as many as were observed; the staging table is dropped;
   the ledger is told the attempt. Just before the commit the daemon is asked whether the attempt's token still lives.
4. Then `finish` flips the status to READY in the control database, with the token.

Why this order: until the flip the chunk is RUNNING, and nobody reads it; so rows that are new too early harm nobody,
whereas READY before the rows are there would. A crash before 3's commit leaves the old rows and a staging table that is
collected later; a crash between 3 and 4 leaves new rows under a chunk that is not READY, and the next attempt replaces
them again. A repeated 3 finds its own number in the ledger and does nothing. A zombie is stopped by its dead token, and,
should it have asked in the last moment of its life, by the fence of its successor; if the successor has not begun yet,
it will replace whatever the zombie left. Who reads compares the ledger with the manifest before: rows of any other attempt
are WRONG_DATA; and after: rows that were replaced or deleted meanwhile are INPUT_CHANGED, and the attempt is repeated.

Who deletes chunks goes the other way round: the control database forgets the runs, uncommitted; the rows go, and the ledger
names no attempt; then the first is committed. Should that fail, the chunk is READY without rows, and nobody can read it.
"""

from __future__ import annotations
