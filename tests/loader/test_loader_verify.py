"""``verify="full"``: all of a plugin is compared with the recorded digests."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import sys
from typing import TYPE_CHECKING

import pytest
from loader_packs import SplitSite, split_site
from loader_stubs import LIBRARY, Workbench, compile_c, run, write_table

from loader_objects import LOADER

if TYPE_CHECKING:
    from pathlib import Path

CATCH = """
import vecsort
from vecsort import _archsplit as face
try:
    print(face.{call})
except face.PluginError as error:
    print(type(error).__name__, error)
"""


def test_digest_is_sha256_for_each_length_of_the_last_block(tmp_path: Path) -> None:
    source = LOADER / "src" / "sha256.c"
    path = compile_c(tmp_path / "sha256.so", "-shared", "-fPIC", str(source))
    library = ctypes.CDLL(str(path))
    digest = ctypes.create_string_buffer(32)
    for length in range(130):
        content = bytes(range(length))
        library.sha256(content, ctypes.c_size_t(length), digest)
        assert digest.raw == hashlib.sha256(content).digest(), length


@pytest.fixture
def site(workbench: Workbench, tmp_path: Path) -> Path:
    """A core and its plugins, with the records that pip writes."""
    workbench.core(tmp_path)
    for target in ("sm_80", "sm_90"):
        path = workbench.plugin(tmp_path, target)
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        member = str(path.relative_to(tmp_path))
        record(tmp_path, target).parent.mkdir()
        record(tmp_path, target).write_text(
            f"{member},sha256={digest.rstrip('=')},{path.stat().st_size}\n"
            f"vecsort_{target.replace('_', '')}-1.2.3.dist-info/RECORD,,\n"
        )
    return tmp_path


def record(site: Path, target: str) -> Path:
    return site / f"vecsort_{target.replace('_', '')}-1.2.3.dist-info" / "RECORD"


def change(path: Path) -> None:
    """Change a byte that no reader of the descriptor looks at."""
    content = bytearray(path.read_bytes())
    content[content.index(b"a constructor ran")] ^= 1
    path.write_bytes(content)


def list_in_core(site: Path, **changes: str) -> None:
    """Put the digests of the plugins into ``core.json``, as a build does."""
    core = site / "vecsort" / "_archsplit" / "core.json"
    plugins = sorted((site / "vecsort_plugins" / "cuda").glob("*/*.so"))
    digests = {path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in plugins}
    core.write_text(json.dumps(json.loads(core.read_text()) | {"digests": digests | changes}))
    write_table(core.parent, **digests | changes)


def told(workbench: Workbench, site: Path, call: str, **more: str) -> str:
    done = workbench.python(site, CATCH.format(call=call), gpus=more.pop("gpus", "9.0"), **more)
    assert done.stderr == ""
    return done.stdout


def test_plugin_on_record_is_opened(workbench: Workbench, site: Path) -> None:
    assert "sm_90/libvecsort.so" in told(workbench, site, 'load(verify="full")')
    assert told(workbench, site, 'require(verify="full")') == "None\n"
    assert "CDLL" in told(workbench, site, 'load(capability="8.6", verify="full")')


def test_record_of_the_core_needs_no_installer(workbench: Workbench, site: Path) -> None:
    list_in_core(site)
    for target in ("sm_80", "sm_90"):
        record(site, target).unlink()
    assert "sm_90/libvecsort.so" in told(workbench, site, 'load(verify="full")')
    path = site / "vecsort_plugins" / "cuda" / "sm_90" / LIBRARY
    change(path)
    words = f"PluginError {path} is damaged: its SHA-256 is not a recorded one"
    assert told(workbench, site, 'require(verify="full")').startswith(words)


def test_record_of_the_core_counts_before_the_installers(workbench: Workbench, site: Path) -> None:
    """A user who can write a plugin can write the record beside it."""
    list_in_core(site, sm_90="ab" * 32)
    assert "is damaged" in told(workbench, site, 'load(verify="full")')
    assert "CDLL" in told(workbench, site, 'load(verify="full")', gpus="8.0")


def test_changed_plugin_is_opened_unless_verified(
    workbench: Workbench, site: Path, tmp_path: Path
) -> None:
    path = site / "vecsort_plugins" / "cuda" / "sm_90" / LIBRARY
    change(path)
    assert "CDLL" in told(workbench, site, "load()")
    words = f"{path} is damaged: its SHA-256 is not a recorded one"
    mark = tmp_path / "mark"
    for call in ('load(verify="full")', 'require(verify="full")'):
        assert words in told(workbench, site, call, STUB_MARK=str(mark))
    assert not mark.exists()
    assert "CDLL" in told(workbench, site, 'load(verify="full")', gpus="8.0")


def test_unverified_pack_is_verified_when_asked(workbench: Workbench, site: Path) -> None:
    change(site / "vecsort_plugins" / "cuda" / "sm_90" / LIBRARY)
    assert "is damaged" in told(workbench, site, 'load() and face.load(verify="full")')


def test_listed_plugin_has_to_be_on_record_too(
    workbench: Workbench, site: Path, tmp_path: Path
) -> None:
    path = workbench.stub(tmp_path / "mine.so")
    call = f"load(plugins=[{str(path)!r}], verify='full')"
    assert "CDLL" in told(workbench, site, call)
    change(path)
    assert "is damaged" in told(workbench, site, call)


MEMBER = f"vecsort_plugins/cuda/sm_90/{LIBRARY}"


@pytest.mark.parametrize(
    "content",
    [None, "", f"{MEMBER},,\n", f"{MEMBER},sha256=abc,5\n", f"{MEMBER},sha256=a,5\n", "\xff\n"],
)
def test_nothing_on_record_is_told(workbench: Workbench, site: Path, content: str | None) -> None:
    for target in ("sm_80", "sm_90"):
        if content is None:
            record(site, target).unlink()
        else:
            record(site, target).write_text(content)
    for call in ('load(verify="full")', 'require(verify="full")'):
        assert "no installer has a record of vecsort's plugins, so there is nothing to" in told(
            workbench, site, call
        )
    assert "CDLL" in told(workbench, site, "load()")


def test_other_words_are_refused(workbench: Workbench, site: Path) -> None:
    for call in ('load(verify="all")', "require(verify=True)"):
        assert "expected 'index' or 'full'" in told(workbench, site, call)


def test_doctor_reads_all_when_asked(workbench: Workbench, site: Path) -> None:
    change(site / "vecsort_plugins" / "cuda" / "sm_80" / LIBRARY)
    command = [sys.executable, str(site / "vecsort" / "_archsplit"), "--json"]
    environment = workbench.environment("9.0")
    assert json.loads(run(command, environment).stdout)["healthy"]
    done = run([*command, "--full"], environment)
    found = json.loads(done.stdout)
    assert [each["verdict"] for each in found["candidates"]] == ["damaged", "accepted"]
    # No word of a damaged file is believed.
    assert [bool(each["targets"]) for each in found["candidates"]] == [False, True]
    assert (done.returncode, found["healthy"]) == (1, False)


def test_damaged_pack_serves_no_device_in_full_report(workbench: Workbench, tmp_path: Path) -> None:
    core = split_site(workbench, tmp_path / "split")
    path = core.add("cc90", "sm_90")
    content = bytearray(path.read_bytes())
    content[-70] ^= 1
    path.write_bytes(content)
    command = [sys.executable, str(core.face)]
    environment = workbench.environment("9.0")
    assert run(command, environment).returncode == 0
    done = run([*command, "--full"], environment)
    assert done.returncode == 1
    assert "verdict: 0 of 1 device served; damaged plugins: 1" in done.stdout
    assert f"  damaged: {path}" in done.stdout
    assert '--force-reinstall --no-deps "toy-cc90==1.2.3"' in done.stdout


def test_pack_is_held_against_the_table(workbench: Workbench, tmp_path: Path) -> None:
    core: SplitSite = split_site(workbench, tmp_path / "split")
    path = core.add("cc90", "sm_90")
    code = 'from toy._archsplit import require; print(require(verify="full"))'
    assert workbench.python(core.site, code, gpus="9.0").stdout == "None\n"
    content = bytearray(path.read_bytes())
    content[-70] ^= 1
    path.write_bytes(content)
    done = workbench.python(core.site, code, gpus="9.0")
    assert f"PluginError: {path} is damaged: its image at offset" in done.stderr


def test_container_header_is_held_against_the_index(workbench: Workbench, tmp_path: Path) -> None:
    core: SplitSite = split_site(workbench, tmp_path / "split")
    path = core.add("cc90", "sm_90")
    content = bytearray(path.read_bytes())
    at = content.index((0xBA55ED50).to_bytes(4, "little")) + 8
    content[at : at + 8] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(content)
    code = 'from toy._archsplit import require; print(require(verify="full"))'
    done = workbench.python(core.site, code, gpus="9.0")
    assert f"PluginError: {path} is damaged: its container at offset {at - 8} " in done.stderr
    use = (
        f"import ctypes; ctypes.CDLL({str(core.library)!r})\n"
        "from toy._archsplit import explain\nserved = explain().devices[0].served\n"
        "print(served.containers.missing, served.restart)"
    )
    done = workbench.python(core.site, use, gpus="9.0")
    assert done.stdout == "1 False\n"
    assert f"{path} is damaged: its container at offset {at - 8} has another header" in done.stderr
