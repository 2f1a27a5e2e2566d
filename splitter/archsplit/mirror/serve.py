"""A mirror that fills itself: wheels are edited when an installer asks for them.

A project's page lists the wheels of the upstream index. A wheel that was edited before has its new
name and digest; any other keeps its name and has no digest, because its new bytes don't exist yet.
The first request for it downloads and edits the wheel into the static index of the mirror, with one
lock for each file. Without the upstream index, the pages list the edited wheels alone.

starlette and uvicorn, which are an extra, answer the requests. All functions are synchronous:
starlette runs them in threads, so a page is sent while a wheel is edited.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Mapping  # noqa: TC003 - a record's field
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

import uvicorn
from packaging.utils import canonicalize_name
from starlette.applications import Starlette
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from archsplit.errors import (
    ArchsplitError,
    IndexRefusedError,
    IndexUnreachableError,
    OutputError,
    WheelError,
)
from archsplit.index.client import Index
from archsplit.index.retry import RetryPolicy, SystemClock
from archsplit.index.static_folder import lock_folder
from archsplit.index.static_pages import JSON_TYPE
from archsplit.mirror.edit import describe_original, edit_wheel, keep_edit
from archsplit.mirror.mirror import DOWNLOADS, add_wheel, mirror_downloader, quiet
from archsplit.mirror.model import KEEP, MirrorLock, ResolvedWheel, read_state
from archsplit.system.file_lock import lock
from archsplit.system.fs import output_errors, temporary_dir
from archsplit.wheels.filename import WheelName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.requests import Request

    from archsplit.index.client import IndexFile
    from archsplit.mirror.model import MirroredFile, MirroredWheel, MirrorRequest, MirrorState
    from archsplit.release.context import Effects

SERVED = ".served"
"""The name of the lock with the wheels of all requests; no lock file has it."""

_PAGE_SECONDS = 60.0
"""Age up to which an upstream page is used again: installers ask for it before each file."""
_RETRY_SECONDS = 2.0
"""Time limit of a request to the upstream index: an installer waits for the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFile:
    """A file on a page of a served mirror.

    Attributes:
        url: relative to the page, or the address of the upstream file.
        sha256: "" for a wheel that is not edited yet.
        metadata: the digests of METADATA (PEP 658); None if there is none.
    """

    name: str
    url: str
    sha256: str = ""
    requires_python: str = ""
    yanked: str | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullThrough:
    """The content of a served mirror; several threads may call it at once.

    Attributes:
        request: its inputs are not used.
        upstream: the address of the index, ending with a slash.
    """

    request: MirrorRequest
    upstream: str
    effects: Effects = field(repr=False)
    _pages: dict[str, tuple[float, Mapping[str, IndexFile]]] = field(
        default_factory=dict, repr=False
    )
    _outage: dict[str, float] = field(default_factory=dict, repr=False)

    def files(self, project: str) -> list[ServedFile] | None:
        """Return the files on a project's page, or None for an unknown project.

        Raises:
            IndexUnreachableError: neither the upstream index nor the mirror has the page.
        """
        state = read_state(self.request.out)
        own = [wheel for wheel in state.wheels if wheel.name == project]
        try:
            upstream = self._upstream(project)
        except (IndexUnreachableError, IndexRefusedError):
            # A machine without a network can still install the edited wheels.
            if not own:
                raise
            upstream = {}
        found: list[ServedFile] = []
        edited = {wheel.original.file for wheel in own}
        for wheel in own:
            original = upstream.get(wheel.original.file)
            found += [_own_file(file, original) for file in wheel.files]
        found += [_upstream_file(file) for name, file in upstream.items() if name not in edited]
        # A 404 for an empty page: installers then look into their other indexes.
        return found or None

    def wheel(self, project: str, name: str) -> Path | None:
        """Return the path of a wheel, edited if it is the first request; None for an unknown one.

        Raises:
            ArchsplitError: see `update_mirror`.
        """
        path = self._index_path(project, name)
        if path is None:
            return None
        if path.is_file():
            return path
        # One edit of a file at a time, in all processes; requests for other files go on.
        with self._locked(name):
            earlier = self._find_edited(name)
            original = None if earlier else self._upstream(project).get(name)
            if original is not None:
                earlier = self._edit(project, original)
        if earlier is None:
            return None
        return self._index_path(project, earlier.files[0].file)

    def metadata(self, project: str, name: str) -> bytes | None:
        """Return the METADATA of a wheel (PEP 658), or None."""
        path = self._index_path(project, name)
        if path is not None and (own := path.with_name(f"{name}.metadata")).is_file():
            return own.read_bytes()
        original = self._upstream(project).get(name)
        if original is None or original.metadata is None:
            return None
        return self._fetch_metadata(original)

    def _index_path(self, project: str, name: str) -> Path | None:
        """Return the path of a wheel in the index; None for a name of another project."""
        try:
            own = WheelName.parse(name).project
        except WheelError:
            return None
        return self.request.out / project / name if own == project else None

    def _find_edited(self, name: str) -> MirroredWheel | None:
        edits = (self.request.edit, KEEP)
        state = read_state(self.request.out)
        found = (one for one in state.wheels if one.original.file == name and one.edit in edits)
        return next(found, None)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        path = self._downloads / f"{name}.lock"
        with output_errors(path):
            self._downloads.mkdir(parents=True, exist_ok=True)
            file = path.open("wb")
        with file:
            lock(file.fileno())
            yield

    @property
    def _downloads(self) -> Path:
        return self.request.downloads or self.request.out / DOWNLOADS

    def _edit(self, project: str, original: IndexFile) -> MirroredWheel:
        resolved = ResolvedWheel(
            name=project,
            version=WheelName.parse(original.name).version,
            file=original.name,
            url=original.url,
            sha256=original.digests.get("sha256", ""),
        )
        path = mirror_downloader(self._downloads, self.effects).fetch(resolved)
        description = describe_original(path, resolved)
        edit = keep_edit(
            description, self.request.edit, keeps_proprietary=self.request.keeps_proprietary
        )
        with temporary_dir(self.request.out) as scratch:
            edited = edit_wheel(path, description, edit, scratch, quiet(self.effects))
            # The folder is locked for the copy alone: other wheels are edited meanwhile.
            with lock_folder(self.request.out) as index:
                state = _with_served(read_state(index.root), edited.wheel, self.request)
                add_wheel(index, edited, state, now=int(time.time()))
        if self.request.downloads is None:
            with output_errors(path):
                path.unlink()
        return edited.wheel

    def _upstream(self, project: str) -> Mapping[str, IndexFile]:
        fetched_at, page = self._pages.get(project, (0.0, {}))
        if page and time.monotonic() - fetched_at < _PAGE_SECONDS:
            return page
        # One time limit for all pages: without a network, each of them would wait for it.
        failed = self._outage.get(self.upstream)
        recent = failed is not None and time.monotonic() - failed < _PAGE_SECONDS
        retry = RetryPolicy(
            seconds=0.0 if recent else _RETRY_SECONDS,
            clock=SystemClock(),
            note=self.effects.progress.note,
        )
        try:
            page = Index(self.upstream, retry).project(project).files
        except IndexUnreachableError:
            self._outage[self.upstream] = time.monotonic()
            raise
        self._pages[project] = (time.monotonic(), page)
        return page

    def _fetch_metadata(self, original: IndexFile) -> bytes | None:
        import requests  # noqa: PLC0415 - an extra

        try:
            reply = requests.get(original.metadata_url, timeout=_RETRY_SECONDS)
            reply.raise_for_status()
        except requests.RequestException:
            # Not an error: installers then read METADATA from the wheel.
            return None
        expected = (original.metadata or {}).get("sha256")
        if expected and hashlib.sha256(reply.content).hexdigest() != expected:
            return None
        return reply.content


def _own_file(file: MirroredFile, original: IndexFile | None) -> ServedFile:
    return ServedFile(
        name=file.file,
        url=quote(file.file),
        sha256=file.sha256,
        requires_python="" if original is None else original.requires_python,
        yanked=None if original is None else original.yanked,
        # The edit adds a note to METADATA; the index has the new file.
        metadata={},
    )


def _upstream_file(file: IndexFile) -> ServedFile:
    is_wheel = file.name.endswith(".whl")
    return ServedFile(
        name=file.name,
        # Source distributions have no device code to remove.
        url=quote(file.name) if is_wheel else file.url,
        # The edit changes the bytes: installers would refuse the wheel for the upstream digest.
        sha256="" if is_wheel else file.digests.get("sha256", ""),
        requires_python=file.requires_python,
        yanked=file.yanked,
        metadata=file.metadata if is_wheel else None,
    )


def _with_served(state: MirrorState, wheel: MirroredWheel, request: MirrorRequest) -> MirrorState:
    """Return the state with a wheel in the lock of all requests."""
    earlier = next((one for one in state.locks if one.name == SERVED), None)
    files = {wheel.original.file, *(() if earlier is None else earlier.files)}
    lock = MirrorLock(
        name=SERVED, inputs=(), edit=request.edit, files=tuple(sorted(files)), locks=()
    )
    served = state.with_wheel(wheel)
    own = [one for one in served.wheels if one.original.file in files]
    return served.with_lock(lock, own)


def page_json(project: str, files: list[ServedFile]) -> str:
    """Return a project's page in JSON (PEP 691)."""
    rows = [
        {
            "filename": file.name,
            "url": file.url,
            "hashes": {"sha256": file.sha256} if file.sha256 else {},
            **({"requires-python": file.requires_python} if file.requires_python else {}),
            "yanked": False if file.yanked is None else file.yanked or True,
            "core-metadata": False if file.metadata is None else dict(file.metadata) or True,
        }
        for file in files
    ]
    return json.dumps({"meta": {"api-version": "1.0"}, "name": project, "files": rows})


def page_html(project: str, files: list[ServedFile]) -> str:
    """Return a project's page in HTML (PEP 503)."""
    lines = [f"<!DOCTYPE html><html><head><title>Links for {escape(project)}</title></head><body>"]
    for file in files:
        fragment = f"#sha256={file.sha256}" if file.sha256 else ""
        words = {
            "href": f"{file.url}{fragment}",
            **({"data-requires-python": file.requires_python} if file.requires_python else {}),
            **({} if file.yanked is None else {"data-yanked": file.yanked}),
            **({} if file.metadata is None else {"data-core-metadata": _metadata_words(file)}),
        }
        text = " ".join(f'{name}="{escape(value)}"' for name, value in words.items())
        lines.append(f"<a {text}>{escape(file.name)}</a><br>")
    return "\n".join([*lines, "</body></html>\n"])


def _metadata_words(file: ServedFile) -> str:
    digest = (file.metadata or {}).get("sha256")
    return f"sha256={digest}" if digest else "true"


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
