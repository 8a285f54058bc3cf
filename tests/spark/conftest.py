"""Spark is started once, for all that need it."""

from __future__ import annotations

from tests.fix_spark import spark

__all__ = ["spark"]
