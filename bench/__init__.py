"""Measures what the proxy costs, next to others, on one machine and in one run."""
