"""Puts processes and parts together."""
