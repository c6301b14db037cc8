"""tokgauge: a measuring reverse proxy in front of an OpenAI-compatible engine."""

__version__ = "0.1.0"
