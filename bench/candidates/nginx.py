"""nginx as it is set up for event streams: no buffering, kept connections, one worker."""

from __future__ import annotations

import os
import subprocess

from bench.candidates.launch import Launch, Place, program

NAME = "nginx"

_CONFIG = """
daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
pid {directory}/nginx.pid;
error_log stderr warn;
{user}
events {{ worker_connections 16000; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    keepalive_requests 100000000;
    upstream engine {{
        server 127.0.0.1:{engine_port};
        keepalive 64;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 3600s;
        }}
    }}
}}
"""


def start(place: Place) -> Launch:
    path = program("nginx")
    config = place.directory / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(
        _CONFIG.format(
            directory=place.directory, port=place.port, engine_port=place.engine_port, user=user
        )
    )
    return Launch((path, "-e", "stderr", "-p", str(place.directory), "-c", str(config)))


def version() -> str:
    done = subprocess.run([program("nginx"), "-v"], capture_output=True, text=True)
    return done.stderr.strip().rpartition("/")[2]
