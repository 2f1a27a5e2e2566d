"""A served mirror: pip and uv install from it, and each wheel is edited once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirror_samples import FAT, PLAIN, SLIM, ServedIndex, held, install, mirror

from archsplit.arch.target import Capability
from archsplit.devicecode.select import PtxPolicy
from archsplit.mirror.model import MirrorRequest
from archsplit.mirror.serve import PullThrough
from archsplit.release.context import Effects
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

uvicorn = pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
app = pytest.importorskip("archsplit.mirror.serve", reason="the extra `serve` is not installed")

JSON = "application/vnd.pypi.simple.v1+json"


@contextlib.contextmanager
def serving(upstream: str) -> Iterator[str]:
    """Serve the folder ``out`` in a thread, and give its address."""
    request = MirrorRequest(
        inputs=(), out=Path("out").absolute(), devices=(Capability(9, 0),), ptx=PtxPolicy.NEWEST
    )
    effects = Effects(progress=SilentProgress(), environment={}, jobs=1)
    content = PullThrough(request=request, upstream=upstream, effects=effects)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app.mirror_app(content), log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


def get(url: str, accept: str = JSON) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as reply:
        content: bytes = reply.read()
    return content


def page(url: str) -> Any:  # noqa: ANN401 (JSON)
    return {row["filename"]: row for row in json.loads(get(url))["files"]}


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_installers_get_slim_wheels_and_each_is_edited_once(index: ServedIndex, tool: str) -> None:
    with serving(index.url) as url:
        assert page(f"{url}fat/")[FAT]["hashes"] == {}
        install(tool, Path("site"), "--index-url", url, "fat")
        assert held(Path("site")) == {"fat-1.2.3", "plain-2.0"}
        assert list(page(f"{url}fat/")) == [SLIM]
        downloads = [path for path, _ in index.downloads() if path.endswith(FAT)]
        install(tool, Path("again"), "--index-url", url, "fat")
    assert [path for path, _ in index.downloads() if path.endswith(FAT)] == downloads
    assert len(downloads) == 1
    slim = Path("site/fat-1.2.3.dist-info/archsplit-slim.json")
    assert slim.read_bytes() == Path("again/fat-1.2.3.dist-info/archsplit-slim.json").read_bytes()


def test_requests_for_one_wheel_share_one_edit(index: ServedIndex) -> None:
    with serving(index.url) as url, concurrent.futures.ThreadPoolExecutor(4) as pool:
        contents = set(pool.map(get, [f"{url}fat/{FAT}"] * 4))
    assert contents == {Path("out/fat", SLIM).read_bytes()}
    assert len(index.downloads()) == 1


def test_a_mirror_goes_on_without_its_upstream(index: ServedIndex, slimmed: Path) -> None:
    shutil.copytree(slimmed, "out")
    with serving("http://127.0.0.1:9/") as url:
        assert list(page(f"{url}fat/")) == [SLIM]
        assert get(f"{url}fat/{SLIM}") == (slimmed / "fat" / SLIM).read_bytes()
        assert b"Name: fat" in get(f"{url}fat/{SLIM}.metadata")
        with pytest.raises(urllib.error.HTTPError) as failure:
            get(f"{url}vendor/")
    assert failure.value.code == 502
    with failure.value as answer:
        assert b"127.0.0.1:9/vendor/" in answer.read()


def test_served_wheels_stay_when_a_lock_is_mirrored(index: ServedIndex, wheels: Path) -> None:
    with serving(index.url) as url:
        get(f"{url}plain/{PLAIN}")
    Path("r.txt").write_text(f"--no-index\n--find-links {wheels}\nvendor\n")
    assert mirror("r.txt", "--device", "9.0", "--out", "out") == 0
    assert (Path("out/plain") / PLAIN).exists()
    names = json.loads(Path("out/archsplit-mirror.json").read_text())["wheels"]
    assert {wheel["name"] for wheel in names} == {"plain", "vendor"}


def test_pages_have_one_address_and_two_forms(index: ServedIndex) -> None:
    with serving(index.url) as url:
        assert f'href="{PLAIN}"'.encode() in get(f"{url}Plain/", "text/html")
        assert json.loads(get(url))["projects"] == []
        for wrong in ("nothing/", "plain/fat-1.0-py3-none-any.whl", "plain/other", f"fat/{PLAIN}"):
            with pytest.raises(urllib.error.HTTPError, match="404") as failure:
                get(f"{url}{wrong}")
            failure.value.close()


def test_serving_takes_no_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert mirror("a.txt", "--serve", "--device", "9.0", "--out", "out") == 2
    assert "--serve has no inputs" in capsys.readouterr().err
    assert mirror("--serve", "--split", "--device", "9.0", "--out", "out") == 2
    assert "doesn't split" in capsys.readouterr().err
