"""Jobs that come with dataflowd, under the name that flow files have for them: `python = "dataflowd.jobs:copy"`."""

from __future__ import annotations

from dataflowd.sdk.jobs import copy, look, validate

__all__ = ["copy", "look", "validate"]
