"""The keys of every command's `--json`: what `--help` lists, and what the tests hold the commands to.

A type is text, integer, number, boolean, time (ISO 8601), list or object; `?` after it: or null. Keys are added, never
renamed or removed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What a command prints: one object, or a list of them."""

    keys: dict[str, str]
    is_list: bool = True


CAUSE = {
    "code": "text",
    "runs": "integer",
    "retrying": "integer",
    "jobs": "integer",
    "first": "time?",
    "last": "time?",
    "example_jobid": "text?",
    "example_dataid": "text?",
    "reason": "text?",
}
DAEMON = {
    "daemon": "text",
    "hostname": "text",
    "pid": "integer",
    "environment": "text",
    "version": "text",
    "started": "time",
    "lease_until": "time",
    "heard": "time",
    "state": "text",
    "running": "integer",
    "concurrency": "integer?",
    "paused": "boolean",
}
JOB_STATUS = {
    "jobid": "text",
    "done": "integer",
    "running": "integer",
    "waits_for_spark": "integer",
    "limit": "integer?",
    "waiting": "integer",
    "retry_later": "integer",
    "failed": "integer",
    "resubmit": "integer",
    "held": "integer",
    "quarantined": "integer",
    "forced": "integer",
    "oldest_waiting": "time?",
    "per_hour": "number?",
    "eta_seconds": "number?",
    "paused": "boolean",
}
ANSWER = {
    "number": "integer",
    "question": "text",
    "answer": "boolean?",
    "code": "text?",
    "detail": "text",
    "remedy": "text?",
}
BLOCKER = {
    "code": "text",
    "what": "text",
    "runs": "integer",
    "first": "text?",
    "last": "text?",
    "detail": "text",
    "remedy": "text?",
}
ATTEMPTED = {
    "jobid": "text",
    "dataid": "text",
    "attempt": "integer",
    "daemon": "text",
    "claimed": "time",
}
RESUBMITTED = {
    "depth": "integer",
    "jobid": "text",
    "dataid": "text",
    "was": "text",
    "code": "text?",
}

ENDED = {
    "jobid": "text",
    "dataid": "text",
    "attempt": "integer",
    "outcome": "text",
    "code": "text?",
    "error": "text?",
    "remedy": "text?",
}

KEYS: dict[str, Shape] = {
    "run": Shape(ENDED),
    "force": Shape(ENDED),
    "exec": Shape(ENDED),
    "env": Shape({"name": "text", "value": "text"}),
    "begin": Shape(
        {
            "handle": "text",
            "jobid": "text",
            "dataid": "text",
            "attempt": "integer",
            "number": "integer",
            "lease_until": "time",
            "environment": "object",
        },
        is_list=False,
    ),
    "renew": Shape({"lease_until": "time"}, is_list=False),
    "end": Shape({"outcome": "text", "code": "text?", "error": "text?", "remedy": "text?"}, is_list=False),
    "key generate": Shape({"keyid": "text", "suite": "text", "file": "text"}, is_list=False),
    "key list": Shape(
        {
            "keyid": "text",
            "suite": "text",
            "created": "time",
            "retired": "time?",
            "datasets": "integer",
            "is_current": "boolean",
        }
    ),
    "key rotate": Shape(
        {"keyid": "text", "sealed": "list", "retired": "list", "failed": "integer"}, is_list=False
    ),
    "seal": Shape({"datasetid": "text", "keyid": "text", "target": "text"}, is_list=False),
    "status": Shape(
        {
            "at": "time",
            "running": "integer",
            "limit": "integer",
            "paused": "boolean",
            "waiting": "integer",
            "waits_for_spark": "list of {daemon, runs, detail}",
            "needs_hand": "list of {code, count, detail, remedy}",
            "causes": f"list of {{{', '.join(CAUSE)}}}",
            "daemons": f"list of {{{', '.join(DAEMON)}}}",
            "jobs": f"list of {{{', '.join(JOB_STATUS)}}}",
        },
        is_list=False,
    ),
    "chunks": Shape(
        {
            "dataid": "text",
            "status": "text",
            "jobid": "text?",
            "rows": "integer?",
            "bytes": "integer?",
            "version": "integer",
            "modified": "time",
            "attempt": "integer?",
            "code_hash": "text?",
            "config_hash": "text?",
            "validated": "boolean",
            "external": "boolean",
            "stale": "list?",
            "code": "text?",
            "reason": "text?",
            "location": "text?",
            "forced": "boolean",
            "missing": "list?",
            "forced_inputs": "list?",
            "params": "object?",
            "changed": "list?",
        }
    ),
    "runs": Shape(
        {
            "jobid": "text",
            "dataid": "text",
            "number": "integer",
            "attempt": "integer",
            "status": "text",
            "claimed": "time",
            "ended": "time?",
            "seconds": "number",
            "daemon": "text",
            "code": "text?",
            "error": "text?",
            "retry_at": "time?",
            "params": "object?",
        }
    ),
    "attempts": Shape(
        {
            "number": "integer",
            "attempt": "integer",
            "status": "text",
            "tries": "integer",
            "lost": "integer",
            "claimed": "time",
            "started": "time?",
            "ended": "time?",
            "seconds": "number",
            "daemon": "text",
            "hostname": "text?",
            "code": "text?",
            "error": "text?",
            "retry_at": "time?",
            "forced": "boolean",
            "tag": "text",
            "inputs": "object",
            "code_hash": "text?",
            "config_hash": "text?",
            "usage": "object",
            "checks": "list",
            "nodes": "list",
            "missing": "list?",
            "forced_inputs": "list?",
            "params": "object?",
            "words": "list?",
            "remedy": "text?",
        }
    ),
    "why": Shape(
        {
            "jobid": "text",
            "dataid": "text?",
            "state": "text?",
            "detail": "text?",
            "remedy": "text?",
            "questions": f"list of {{{', '.join(ANSWER)}}}",
            "blockers": f"list of {{{', '.join(BLOCKER)}}}",
        },
        is_list=False,
    ),
    "history": Shape(
        {
            "at": "time",
            "actor": "text",
            "application": "text",
            "kind": "text",
            "datasetid": "text?",
            "attempt": "integer?",
            "from_status": "text?",
            "to_status": "text?",
            "code": "text?",
            "reason": "text?",
        }
    ),
    "resubmit": Shape(
        {"dry_run": "boolean", "count": "integer", "runs": f"list of {{{', '.join(RESUBMITTED)}}}"},
        is_list=False,
    ),
    "accept": Shape(
        {
            "dry_run": "boolean",
            "count": "integer",
            "chunks": "list of {datasetid, dataid, version, because, changed, code_hash, config_hash}",
        },
        is_list=False,
    ),
    "hold": Shape(
        {"dry_run": "boolean", "count": "integer", "chunks": "list of {datasetid, dataid, was, stops}"},
        is_list=False,
    ),
    "release": Shape(
        {"dry_run": "boolean", "count": "integer", "chunks": "list of {datasetid, dataid, becomes}"},
        is_list=False,
    ),
    "cancel": Shape(
        {"dry_run": "boolean", "count": "integer", "runs": f"list of {{{', '.join(ATTEMPTED)}}}"},
        is_list=False,
    ),
    "pause": Shape({"scope": "text", "was": "boolean"}),
    "resume": Shape({"scope": "text", "was": "boolean"}),
    "concurrency": Shape(
        {
            "scope": "text",
            "concurrency": "integer?",
            "paused": "boolean",
            "running": "integer",
            "declared_in": "text",
            "runners": "integer?",
            "slots": "integer?",
        }
    ),
    "ready": Shape(
        {"datasetid": "text", "registered": "integer", "warnings": "list of {code, dataid, count, detail}"},
        is_list=False,
    ),
    "unregister": Shape(
        {
            "dry_run": "boolean",
            "count": "integer",
            "chunks": "list of {deed, jobid, dataset, dataid, status, version}",
            "made": "list of {deed, jobid, dataset, dataid, status, version}",
        },
        is_list=False,
    ),
    "jobs": Shape(
        {
            "jobid": "text",
            "flow": "text",
            "kind": "text",
            "description": "text",
            "inputs": "list",
            "outputs": "list",
            "max_running": "integer?",
            "max_attempts": "integer",
            "retry_delay_seconds": "number",
            "timeout_seconds": "number?",
            "priority": "integer",
            "strict_order": "boolean",
            "paused": "boolean",
            "params": "object",
            "code_hash": "text?",
            "config_hash": "text?",
            "created": "time",
            "modified": "time",
            "retired": "time?",
            "like_job": "text?",
        }
    ),
    "datasets": Shape(
        {
            "datasetid": "text",
            "flow": "text",
            "format": "text",
            "description": "text",
            "producer": "text?",
            "consumers": "list",
            "place": "text?",
            "hostname": "text?",
            "ordering": "text",
            "environment": "text?",
            "chunks": "integer",
            "ready": "integer",
            "created": "time",
            "modified": "time",
            "retired": "time?",
        }
    ),
    "lineage": Shape(
        {
            "direction": "text",
            "depth": "integer",
            "path": "list",
            "jobid": "text?",
            "datasetid": "text",
            "dataid": "text?",
            "status": "text?",
            "version": "integer?",
            "code": "text?",
            "forced": "boolean?",
            "missing": "list?",
        }
    ),
    "stats": Shape(
        {
            "jobid": "text",
            "description": "text",
            "created": "time",
            "modified": "time",
            "retired": "time?",
            "flow": "text",
            "kind": "text",
            "code_hash": "text?",
            "config_hash": "text?",
            "inputs": "list",
            "outputs": "list",
            "configuration": "object",
            "sources": "list of {datasetid, format, place, hostname, partitionings}",
            "chunks": "object",
            "exceptions": "list of {code, attempts, last, error}",
            "quarantine": "object",
            "execution": "object",
            "published": "object",
            "nodes": "list of {node, parent, sources, attempts, items, successes, failures, seconds}",
        },
        is_list=False,
    ),
    "partition create": Shape(
        {"datasetid": "text", "partitioning": "text", "batches": "integer", "items": "integer?"},
        is_list=False,
    ),
    "partition list": Shape(
        {
            "datasetid": "text",
            "partitioning": "text",
            "key_columns": "list",
            "kind": "text",
            "size": "integer?",
            "created": "time",
            "batches": "integer",
            "items": "integer?",
            "ready": "integer",
            "held": "integer",
            "consumed": "integer",
        }
    ),
    "job create": Shape(
        {"dry_run": "boolean", "changes": "list of {kind, name, action, changed}"}, is_list=False
    ),
    "job drop": Shape(
        {"dry_run": "boolean", "changes": "list of {kind, name, action, changed}"}, is_list=False
    ),
    "partition delete": Shape({"dry_run": "boolean", "batches": "integer"}, is_list=False),
    "quarantine list": Shape(
        {
            "jobid": "text",
            "code": "text",
            "reason": "text",
            "open": "integer",
            "resolved": "integer",
            "unapplied": "integer",
            "chunks": "integer",
            "first": "time",
            "last": "time",
            "example_dataid": "text",
            "example_itemid": "text",
            "example": "any?",
        }
    ),
    "quarantine records": Shape(
        {
            "jobid": "text",
            "dataid": "text",
            "itemid": "text",
            "code": "text",
            "reason": "text",
            "created": "time",
            "attempt": "integer",
            "is_resolved": "boolean",
            "resolved_by": "text?",
            "resolved": "time?",
        }
    ),
    "quarantine show": Shape(
        {
            "jobid": "text",
            "dataid": "text",
            "itemid": "text",
            "attempt": "integer",
            "code": "text",
            "reason": "text",
            "details": "object",
            "created": "time",
            "is_resolved": "boolean",
            "resolved_by": "text?",
            "resolved": "time?",
            "resolution": "object?",
            "applied": "integer?",
            "contained": "boolean",
        },
        is_list=False,
    ),
    "quarantine resolve": Shape({"resolved": "integer"}, is_list=False),
    "quarantine unresolve": Shape({"unresolved": "integer"}, is_list=False),
    "quarantine replay": Shape(
        {
            "dry_run": "boolean",
            "count": "integer",
            "runs": "list of {dataid, was, resolved, open, way, because}",
        },
        is_list=False,
    ),
    "delete": Shape(
        {
            "dry_run": "boolean",
            "count": "integer",
            "runs": "list of {dataid, status, chunks, attempts, versions, quarantined}",
            "directories": "list of {path, bytes, kept}",
            "tables": "list of {dataset, rows}",
        },
        is_list=False,
    ),
    "try": Shape(
        {
            "jobid": "text",
            "dataid": "text",
            "outcome": "text",
            "code": "text?",
            "error": "text?",
            "outputs": "list of {dataset, rows, bytes, columns, preview}",
            "checks": "list of {dataset, name, severity, passed, observed, expected}",
            "nodes": "list of {node, parent, sources, items, successes, failures, seconds}",
            "quarantine": "list of {item, code, reason, details}",
            "seconds": "object",
            "log": "list",
        },
        is_list=False,
    ),
    "gc": Shape(
        {
            "dry_run": "boolean",
            "count": "integer",
            "bytes": "integer",
            "directories": "list of {dataset, dataid, attempt, why, since, path, bytes, kept}",
            "temporary": "list",
            "skipped": "list of {dataset, location, why}",
        },
        is_list=False,
    ),
    "prune": Shape({"dry_run": "boolean", "events": "integer"}, is_list=False),
    "rebuild": Shape({"queued": "integer", "folded": "integer"}, is_list=False),
}


def described(shape: Shape) -> str:
    keys = ", ".join(f"{key} ({kind})" for key, kind in shape.keys.items())
    return f"--json prints {'a list of objects' if shape.is_list else 'one object'}: {keys}."
