"""Three days of nightlies in an index that keeps two, installed by pip and by uv."""

from __future__ import annotations

from typing import TYPE_CHECKING

from index_http_server import serving
from index_installers import installed, pip, uv
from index_samples import DAY, EPOCH, build_folder

from archsplit.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

DAYS = ("20261121", "20261122", "20261123")


def test_three_nightly_releases_leave_the_expected_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    with serving(index) as (url, _):
        for number, day in enumerate(DAYS):
            version = f"1.1.dev{day}"
            # The last of them is slimmer: whose GPU is sm80 stays on the second day's.
            targets = ("sm90",) if number == 2 else ("sm80", "sm90")
            build = build_folder(tmp_path / day, version, targets)
            monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH + number * DAY))
            update = ("--add", str(build), "--prune", "age=1d", "--grace", "0s", "--check")
            assert main(["index", str(index), *update]) == 0
            for name, install, pre in (
                ("pip", pip, ("--pre",)),
                ("uv", uv, ("--prerelease", "allow")),
            ):
                site = tmp_path / f"{name}-{day}"
                done = install(url, "install", *pre, "--target", str(site), "toy[sm90]")
                assert done.returncode == 0, done.stderr
                assert installed(site) == {f"toy-{version}", f"toy_sm90-{version}"}
        site = tmp_path / "older"
        done = pip(url, "install", "--target", str(site), "toy[sm80]==1.1.dev20261122")
        assert done.returncode == 0, done.stderr
        pruned = pip(url, "install", "--target", str(site), "toy==1.1.dev20261121")
        assert pruned.returncode != 0
    wheels = sorted(path.name for path in index.glob("*/*.whl"))
    assert wheels == [
        "toy-1.1.dev20261122-py3-none-any.whl",
        "toy-1.1.dev20261123-py3-none-any.whl",
        "toy_sm80-1.1.dev20261122-py3-none-any.whl",
        "toy_sm90-1.1.dev20261122-py3-none-any.whl",
        "toy_sm90-1.1.dev20261123-py3-none-any.whl",
    ]
