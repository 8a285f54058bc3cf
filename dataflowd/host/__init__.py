"""This machine: settings, logs, child processes, accounts, keys, allowed roots and hosts, the embedded Postgres and Java.

This room knows files, processes and users of the host. It knows nothing of the control database's tables, of flow files
or of Spark.
"""
