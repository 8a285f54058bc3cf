"""What a bare host lacks, from PyPI: a Postgres for the control database and a Java for Spark."""
