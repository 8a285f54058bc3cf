"""What the daemon shows over HTTP: /health and /metrics."""
