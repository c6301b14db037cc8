"""HTTP towards the engine: connections, their pool, their time limits."""
