"""HTTP/1.1 on both sides of the proxy: towards clients and towards the engine."""
