"""The ASGI app of a served mirror: the simple repository API as replies of starlette.

A module of its own, because starlette is an extra. All functions are synchronous: starlette runs
them in threads, so a page is sent while a wheel is edited.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from starlette.applications import Starlette
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from archsplit.errors import ArchsplitError
from archsplit.index.static_pages import JSON_TYPE
from archsplit.mirror.model import read_state
from archsplit.mirror.serve import page_html, page_json

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
