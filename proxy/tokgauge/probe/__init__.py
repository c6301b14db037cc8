"""The founding experiment against any OpenAI-compatible server: not streamed, then streamed."""
