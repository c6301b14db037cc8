"""What the socket tests share: a scripted engine, a raw client and a reader of the metrics."""
