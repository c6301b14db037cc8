"""The client's side of HTTP, at the socket: whatever a client sends, it is read in one way."""
