"""A Postgres for the control database and a Java for Spark, from PyPI, for a host that has none."""
