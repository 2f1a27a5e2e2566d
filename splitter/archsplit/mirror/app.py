"""The server of a mirror: the simple repository API as replies of starlette.

A module of its own, because starlette and uvicorn are an extra. All functions are synchronous:
starlette runs them in threads, so a page is sent while a wheel is edited.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvicorn
from packaging.utils import canonicalize_name
from starlette.applications import Starlette
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from archsplit.errors import ArchsplitError, OutputError
from archsplit.index.static_pages import JSON_TYPE
from archsplit.mirror.model import read_state
from archsplit.mirror.serve import page_html, page_json
from archsplit.system.fs import output_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from archsplit.mirror.serve import PullThrough

_HTML_TYPE = "text/html"
_METADATA = ".metadata"


def mirror_app(content: PullThrough) -> Starlette:
    """Return the ASGI app of a mirror."""
    replies = _Replies(content=content)
    return Starlette(
        routes=[
            Route("/", _with_errors(replies.root)),
            Route("/{project}/", _with_errors(replies.project)),
            Route("/{project}/{file}", _with_errors(replies.file)),
        ]
    )


def _with_errors(reply: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Return an endpoint that sends expected failures as text, which installers show."""

    def endpoint(request: Request) -> Response:
        try:
            return reply(request)
        except ArchsplitError as error:
            return PlainTextResponse(f"{error}\n", status_code=502)

    return endpoint


def _not_found() -> Response:
    return PlainTextResponse("no such project or file\n", status_code=404)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replies:
    """The replies to the three kinds of requests."""

    content: PullThrough

    def root(self, request: Request) -> Response:
        del request
        names = sorted({wheel.name for wheel in read_state(self.content.request.out).wheels})
        page = {"meta": {"api-version": "1.0"}, "projects": [{"name": name} for name in names]}
        return Response(json.dumps(page), media_type=JSON_TYPE)

    def project(self, request: Request) -> Response:
        project = request.path_params["project"]
        name = canonicalize_name(project)
        # One address for each page (PEP 503).
        if name != project:
            return RedirectResponse(f"../{name}/", status_code=301)
        files = self.content.files(name)
        if files is None:
            return _not_found()
        # One page has two forms, so a cache between has to tell them apart.
        headers = {"Vary": "Accept"}
        if JSON_TYPE in request.headers.get("accept", ""):
            return Response(page_json(name, files), media_type=JSON_TYPE, headers=headers)
        return Response(page_html(name, files), media_type=_HTML_TYPE, headers=headers)

    def file(self, request: Request) -> Response:
        project, file = request.path_params["project"], request.path_params["file"]
        if file.endswith(_METADATA):
            text = self.content.metadata(project, file.removesuffix(_METADATA))
            return _not_found() if text is None else Response(text, media_type="text/plain")
        path = self.content.wheel(project, file)
        if path is None:
            return _not_found()
        return FileResponse(path, media_type="application/octet-stream")


def serve_mirror(
    content: PullThrough, *, host: str, port: int, listening: Callable[[str], None]
) -> None:
    """Serve a mirror until Ctrl-C.

    Args:
        port: 0 for a free one.
        listening: called with the address, as soon as requests are accepted.

    Raises:
        OutputError: the port is taken, or the folder can't be made.
    """
    with output_errors(content.request.out):
        content.request.out.mkdir(parents=True, exist_ok=True)
    try:
        # Opened here, not by uvicorn: it would end the process where the port is taken.
        listener = socket.create_server((host, port))
    except OSError as error:
        raise OutputError(
            f"can't listen on {host}:{port}: {error.strerror}", hint="choose another --port"
        ) from None
    with listener:
        listening(f"http://{host}:{listener.getsockname()[1]}/")
        config = uvicorn.Config(mirror_app(content), log_level="warning")
        uvicorn.Server(config).run(sockets=[listener])
