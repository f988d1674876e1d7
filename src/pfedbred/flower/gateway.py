"""The gateway: the address that clients connect to. It forwards SuperNodes' requests, and nothing else.

A SuperLink serves three interfaces on one port: one for SuperNodes, which must have a registered key; one for ``flwr``,
which submits code and registers keys; and one for ServerApps. The open-source edition authenticates nobody on the last
two. So the SuperLink listens on the loopback interface only, and others can reach only the gateway.

Any reverse proxy, such as nginx or Envoy, can do this, but is one more program to install and configure. The gateway
needs nothing beyond Flower's own dependencies.
"""

from __future__ import annotations

import re
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Mapping

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pfedbred.errors import SettingError, printable
from pfedbred.flower.certificates import Authority

_ADDRESS = re.compile(r"[\w.-]+:\d{1,5}|\[[\da-fA-F:]+\]:\d{1,5}")
_CALL = re.compile(r"/v1/fleet/[a-z-]+")  # the interface for SuperNodes
_LARGEST = 2**30  # bytes of a request; the SuperLink reads all of it before it checks the sender
_TIMEOUT = 60.0  # seconds for the SuperLink to reply
_HEADERS = ("content-type", "accept")  # and Flower's own: a message's signer and the sender's version


def serve(authority: Authority, superlink: str, host: str, port: int) -> None:
    """Listens with the SuperLink's certificate until the process ends."""
    if not _ADDRESS.fullmatch(superlink) or not 1 <= int(superlink.rpartition(":")[2]) <= 65_535:
        raise SettingError(f"the SuperLink's address must be HOST:PORT, not {superlink!r}")
    try:
        trusted = ssl.create_default_context(cafile=authority.ca)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(authority.certificate, authority.key)
    except OSError as problem:
        raise SettingError(
            f"cannot read certificates in {authority.ca.parent}: {problem.strerror or problem}"
        ) from None
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as problem:
        reason = str(problem.strerror).partition(" (while")[0]  # Python adds the address
        raise SettingError(f"cannot listen on {host}, port {port}: {reason}") from None
    config = uvicorn.Config(
        application(superlink, trusted),
        ssl_certfile=authority.certificate,
        ssl_keyfile=str(authority.key),
        log_level="warning",
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[listening])


def application(superlink: str, trusted: ssl.SSLContext) -> Starlette:
    """The application that handles requests: the whole path must match, and the request is rebuilt."""
    client = httpx.AsyncClient(
        base_url=f"https://{superlink}",
        verify=trusted,
        timeout=_TIMEOUT,
        limits=httpx.Limits(keepalive_expiry=2),  # seconds; the SuperLink closes idle connections after five
        trust_env=False,  # the SuperLink is not behind a proxy
    )

    async def answer(request: Request) -> Response:
        path: str = request.scope["path"]  # request.url would include the sender's Host header
        if request.method != "POST" or not _CALL.fullmatch(path):
            _log(f"refused: {request.method} {path} from {request.client.host if request.client else 'unknown'}")
            return Response("this address is for SuperNodes only", 404)
        try:
            reply = await client.post(path, content=_limited(request), headers=_passed(request.headers))
        except ClientDisconnect:
            return Response(status_code=400)
        except _RequestTooLarge:
            _log(f"refused: {path} with more than {_LARGEST:,} bytes")
            return Response("the request is too large", 413)
        except httpx.HTTPError as problem:
            _log(f"no reply from the SuperLink: {problem!r}")
            return Response("no reply from the SuperLink", 502)  # SuperNodes retry
        return Response(reply.content, reply.status_code, _passed(reply.headers))

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])


class _RequestTooLarge(Exception):
    """A request with too many bytes."""


async def _limited(request: Request) -> AsyncIterator[bytes]:
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > _LARGEST:
            raise _RequestTooLarge
        yield piece


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that Flower reads."""
    return {name: value for name, value in headers.items() if name in _HEADERS or name.startswith("flwr-")}


def _log(line: str) -> None:
    print(printable(line, 300), file=sys.stderr, flush=True)
