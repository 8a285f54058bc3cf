"""Tables in Postgres as datasets: chunks are rows, read and written by Spark over ADBC, and replaced in one transaction.

A chunk of a table is the rows whose `dataid_column` equals the dataid. The table may be in any database, so its rows and
the status in the control database cannot change in one transaction. Two things replace that transaction: the order of the
two changes, and a ledger beside the table (`dataflow_published`: fence and attempt for each chunk).

1. Prepare takes the fence: the ledger's `fence` rises to this attempt's number, and never falls. From here on no older
   attempt can replace the rows. Staging tables that the ledger shows to be outdated are dropped.
2. The executors write the job's rows by COPY to a staging table of this attempt (`<table>__attempt_<n>`, marked by a
   comment). Checks read the staging table; no other job does.
3. Publish is one transaction on the target. It locks the ledger's row, and the fence must still be this attempt's number. It
   deletes the chunk's rows and inserts the staged ones, exactly as many as were observed. It drops the staging table and
   writes the attempt into the ledger. Just before the commit it asks the daemon whether the attempt's token is still valid.
4. Then `finish` sets the status to READY in the control database, with the token.

Why this order: until step 4 the chunk is RUNNING and no job reads it, so rows that are new too early do no harm. READY
before the rows are there would. A crash before the commit of step 3 leaves the old rows, and a staging table that is
collected later. A crash between steps 3 and 4 leaves new rows under a chunk that is not READY; the next attempt replaces
them. A repeated step 3 finds its own number in the ledger and does nothing.

A zombie is stopped by its token, which is no longer valid. If it asked just before the token became invalid, the fence of
its successor stops it. If the successor has not taken the fence yet, it replaces the zombie's rows later. A reader compares
the ledger with the manifest twice. Before it reads: rows of another attempt are WRONG_DATA. After it has read: rows that were
replaced or deleted meanwhile are INPUT_CHANGED, and the attempt is repeated.

Deleting chunks uses the opposite order: a transaction of the control database deletes the runs and stays open; then the
rows are deleted, and the ledger names no attempt; then that transaction commits. If this commit fails, the chunk is READY
without rows, and every read of it is refused.
"""

from __future__ import annotations
