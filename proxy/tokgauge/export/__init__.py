"""What is known, in the forms that others read: Prometheus, OpenTelemetry, the request log."""
