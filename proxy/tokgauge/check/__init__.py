"""What `tokgauge check` finds out: settings, engine, GPUs, ceiling inputs, and where each is from.

It looks with the proxy's own parts (settings, transport, NVML reader, ceiling inputs), so that what
it finds is what `tokgauge serve` would find. It generates one token to see whether the engine
accepts the wish for usage.
"""
