"""The control database: connections, the calls of its functions, and its schema.

This room knows how to ask Postgres and what its answers look like. It decides nothing: rules about readiness, locks and
transitions are in sql/functions. It knows no flow files, no data and no Spark.
"""
