"""Browsers ask, before a page's request, whether the page may send it and read the answer.

Yes, of any page: whose request is served is decided by `auth`, which looks at the key and at the
page. Without this answer no page could speak to the API at all, neither with a key nor where
gateway.allowed_origins names it. What is outside /v1, such as /metrics, is for no page.
"""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send


class Pages(CORSMiddleware):
    """Lets the pages that a browser shows read what the API answers."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            app,
            allow_origins=("*",),
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=("retry-after",),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)
