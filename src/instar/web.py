"""The socket and the web server that the gateway answers on."""

from __future__ import annotations

import errno
import math
import socket
from typing import TYPE_CHECKING

import uvicorn

from instar.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound; ConfigError where it cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        problem = f"cannot listen on {host}:{port}: {error.strerror or error}."
        raise ConfigError(f"{problem} {_what_to_do(error)}") from error
    return listener


def _what_to_do(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return (
            "gateway.host (--host) must be an address of this machine: 127.0.0.1 or ::1 for this "
            "machine alone, 0.0.0.0 for others too."
        )
    return "Is another instar running? Choose another port with --port."


def address_of(listener: socket.socket, host: str) -> str:
    """Where clients find the API."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}/v1"


def web_server(app: FastAPI, *, drain_s: float) -> uvicorn.Server:
    """uvicorn for this app, without what the gateway does itself."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=max(1, math.ceil(drain_s)),
    )
    server = uvicorn.Server(config)
    # Signals are the caller's: it counts them and decides.
    server.capture_signals = _no_signals  # type: ignore[method-assign,assignment]
    return server


class _no_signals:
    """Stands in for uvicorn's own signal handling."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
