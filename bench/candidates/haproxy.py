"""HAProxy in HTTP mode with one thread."""

from __future__ import annotations

import subprocess

from bench.candidates.launch import Launch, Place, program

NAME = "HAProxy"

_CONFIG = """
global
    nbthread 1
    maxconn 7500
defaults
    mode http
    option http-no-delay
    http-reuse always
    timeout connect 5s
    timeout client 1h
    timeout server 1h
frontend clients
    bind 127.0.0.1:{port} backlog 4096
    default_backend engine
backend engine
    server engine 127.0.0.1:{engine_port}
"""


def start(place: Place) -> Launch:
    path = program("haproxy")
    config = place.directory / "haproxy.cfg"
    config.write_text(_CONFIG.format(port=place.port, engine_port=place.engine_port))
    return Launch((path, "-db", "-f", str(config)))


def version() -> str:
    done = subprocess.run([program("haproxy"), "-v"], capture_output=True, text=True)
    return done.stdout.split()[2]
