"""Where chunks lie: files and tables, their columns, checks, manifests, fixed paths, partitionings, and what gc removes.

This room knows how a chunk is read, written, measured and removed. It knows neither jobs and their code nor who runs
them: it is given work orders and locations.
"""
