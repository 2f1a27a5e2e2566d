"""Users and rights: privileged processes, those that the kernel calls secure, and read-only disks.

The programs are C, because other users may not start this machine's Python.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from loader_packs import SplitSite, split_site
from loader_stubs import HERE, LIBRARY, STRICT, Stub, Workbench, compile_c, visible_folder
from loader_zstd import make_core, make_driver

from loader_objects import loader_objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY_UID = 65534
RIGHTS = {"user": 0o4755, "group": 0o2755, "capability": 0o755}
CAPABILITY = struct.pack("<5I", 0x2000001, 1 << 10, 0, 0, 0)
"""Effective and permitted: CAP_NET_BIND_SERVICE. Source: ``vfs_cap_data`` of linux/capability.h."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The loader's probe and a host of split libraries, which ask the stand-in for NVML."""

    folder: Path

    def run(
        self, name: str, *arguments: object, user: int | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.folder / name), *map(str, arguments)]
        child = {"STAND_IN_GPUS": "9.0;9.0", **more}
        groups: list[int] | None = None if user is None else []
        return subprocess.run(
            command, user=user, group=user, extra_groups=groups, env=child, capture_output=True,
            text=True, check=False, timeout=60,
        )  # fmt: skip

    def with_rights(self, name: str, kind: str) -> str:
        """A copy of a program that runs with root's user or group, or with a capability."""
        try:
            host, copy = self._copy("host", kind), self._copy(name, kind)
        except OSError as error:
            pytest.skip(f"this file system takes no capabilities ({error})")
        if "secure " not in self.run(host, user=NOBODY_UID).stdout:
            pytest.skip("this file system gives no rights to programs (nosuid)")
        return copy

    def _copy(self, name: str, kind: str) -> str:
        copy = self.folder / f"{name}-{kind}"
        shutil.copy(self.folder / name, copy)
        copy.chmod(RIGHTS[kind])
        if kind == "capability":
            os.setxattr(copy, "security.capability", CAPABILITY)
        return copy.name


@pytest.fixture(scope="module")
def programs(workbench: Workbench) -> Iterator[Programs]:
    with visible_folder() as folder:
        nvml = workbench.folder / "libnvidia-ml.so.1"
        shutil.copy(nvml, folder)
        # Environment variables don't reach ld.so in a secure process: the path is built in.
        where = (*STRICT, f'-DNVML="{folder / nvml.name}"')
        hidden = (*where, "-fvisibility=hidden")
        end = (*loader_objects(*hidden), "-ldl", "-lpthread")
        compile_c(folder / "probe", *where, str(HERE / "loader_probe.c"), *end)
        compile_c(folder / "libarchsplit_loader.so", "-shared", *end)
        compile_c(folder / "host", *STRICT, str(HERE / "pack_host.c"), "-ldl", "-lpthread")
        yield Programs(folder=folder)


@pytest.fixture
def open_path() -> Iterator[Path]:
    with visible_folder() as folder:
        yield folder


@pytest.fixture
def core(workbench: Workbench, programs: Programs, open_path: Path) -> SplitSite:
    loader = programs.folder / "libarchsplit_loader.so"
    core = split_site(workbench, open_path / "site", loader=loader)
    core.add("cc90", "sm_90")
    return core


SHARED = ("cuda/sm_90/" + LIBRARY, "cuda/sm_90", "cuda", ".")


@needs_root
@pytest.mark.parametrize("part", SHARED)
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_plugin_writable_by_others_is_refused_by_root(
    workbench: Workbench, programs: Programs, open_path: Path, part: str, mode: int
) -> None:
    workbench.plugin(open_path, "sm_90")
    folder = open_path / "vecsort_plugins"
    os.chown(folder / part, 0, NOBODY_UID)
    assert "candidate accepted" in programs.run("probe", folder).stdout
    (folder / part).chmod(mode)
    refused = programs.run("probe", folder, "--open", 0)
    assert "candidate unsafe: " in refused.stdout
    assert "users other than its owner can change it" in refused.stdout
    assert "opened" not in refused.stdout
    assert "candidate accepted" in programs.run("probe", folder, user=NOBODY_UID).stdout


@needs_root
def test_plugin_behind_a_link_is_judged_by_its_target(
    workbench: Workbench, programs: Programs, open_path: Path
) -> None:
    path = workbench.plugin(open_path, "sm_90")
    shared = open_path / "shared"
    shared.mkdir()
    path.rename(shared / LIBRARY)
    path.symlink_to(shared / LIBRARY)
    folder = open_path / "vecsort_plugins"
    assert "candidate accepted" in programs.run("probe", folder).stdout
    shared.chmod(0o777)
    refused = programs.run("probe", folder).stdout
    assert f"users other than its owner can change its folder {shared}" in refused


@needs_root
@pytest.mark.parametrize("safe", [True, False])
def test_listed_plugin_needs_a_safe_folder_too(
    workbench: Workbench, programs: Programs, open_path: Path, safe: bool
) -> None:
    path = workbench.stub(open_path / "mine" / "p.so", Stub())
    path.parent.chmod(0o755 if safe else 0o777)
    found = programs.run("probe", "--file", path).stdout
    assert ("candidate accepted" in found) is safe


@needs_root
@pytest.mark.parametrize("part", ["cuda/cc90/device.pack", "cuda/cc90", "cuda", "."])
def test_pack_writable_by_others_is_not_grafted_for_root(
    programs: Programs, core: SplitSite, part: str
) -> None:
    assert programs.run("host", core.library).stdout == "hH\n"
    place = core.site / "toy_plugins" / part
    place.chmod(0o777)
    refused = programs.run("host", core.library)
    assert refused.stdout == "--\n"
    assert "users other than its owner can change it" in refused.stderr
    assert programs.run("host", core.library, user=NOBODY_UID).stdout == "hH\n"


@needs_root
@pytest.mark.parametrize("part", ["cuda/sm_90/" + LIBRARY, "cuda/sm_90", "."])
def test_plugin_of_another_user_is_refused_by_root(
    workbench: Workbench, programs: Programs, open_path: Path, part: str
) -> None:
    workbench.plugin(open_path, "sm_90")
    folder = open_path / "vecsort_plugins"
    place = folder / part
    os.chown(place, NOBODY_UID, NOBODY_UID)
    refused = programs.run("probe", folder, "--open", 0).stdout
    assert f"user {NOBODY_UID} can change it" in refused
    assert f"chown 0 {place}".removesuffix("/.") in refused
    assert "opened" not in refused


@needs_root
def test_plugin_as_writable_as_the_core_is_used_by_root(
    workbench: Workbench, programs: Programs, open_path: Path
) -> None:
    workbench.plugin(open_path, "sm_90")
    folder = open_path / "vecsort_plugins"
    own = open_path / "probe"
    shutil.copy(programs.folder / "probe", own)
    here = Programs(folder=open_path)
    for part in SHARED:
        os.chown(folder / part, NOBODY_UID, NOBODY_UID)
    assert "candidate unsafe" in here.run("probe", folder).stdout
    os.chown(own, NOBODY_UID, NOBODY_UID)
    assert "candidate accepted" in here.run("probe", folder).stdout


@needs_root
@pytest.mark.parametrize("kind", RIGHTS)
def test_secure_process_does_not_read_the_environment(
    workbench: Workbench, programs: Programs, open_path: Path, kind: str
) -> None:
    workbench.plugin(open_path, "sm_90")
    name = programs.with_rights("probe", kind)
    hidden = {"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "x"}
    plain = programs.run("probe", open_path / "vecsort_plugins", user=NOBODY_UID, **hidden)
    assert "CUDA hides all 2 devices" in plain.stdout
    secure = programs.run(
        name, open_path / "vecsort_plugins", "--open", 1, user=NOBODY_UID, **hidden
    )
    assert "device 1: 9.0 nvml 1" in secure.stdout
    assert "opened, the answer is 42" in secure.stdout


@needs_root
@pytest.mark.parametrize("kind", RIGHTS)
def test_secure_process_refuses_files_writable_by_others(
    workbench: Workbench, programs: Programs, open_path: Path, kind: str
) -> None:
    path = workbench.plugin(open_path, "sm_90")
    name = programs.with_rights("probe", kind)
    path.chmod(0o777)
    found = programs.run(name, open_path / "vecsort_plugins", user=NOBODY_UID).stdout
    assert "candidate unsafe: " in found


@needs_root
@pytest.mark.parametrize("kind", RIGHTS)
def test_secure_process_refuses_packs_others_can_change(
    programs: Programs, core: SplitSite, kind: str
) -> None:
    name, strict = programs.with_rights("host", kind), {"ARCHSPLIT_STRICT": "1"}
    assert programs.run(name, core.library, user=NOBODY_UID).stdout == "secure hH\n"
    core.path("cc90").chmod(0o777)
    ended = programs.run("host", core.library, user=NOBODY_UID, STAND_IN_GPUS="8.0", **strict)
    assert (ended.returncode, ended.stdout) == (1, "")
    refused = programs.run(name, core.library, user=NOBODY_UID, **strict)
    assert refused.stdout == "secure --\n"
    assert "users other than its owner can change it" in refused.stderr


@needs_root
@pytest.mark.parametrize("kind", RIGHTS)
def test_secure_process_searches_packs_only_beside_the_core(
    programs: Programs, core: SplitSite, open_path: Path, kind: str
) -> None:
    """A user can make an environment of links and own packs for a program with more rights."""
    name = programs.with_rights("host", kind)
    links = open_path / "links"
    links.mkdir()
    (links / "toy").symlink_to(core.site / "toy")
    (core.site / "toy_plugins").rename(links / "toy_plugins")
    library = links / "toy" / "lib" / "libtoy.so"
    assert programs.run("host", library, user=NOBODY_UID).stdout == "hH\n"
    assert programs.run(name, library, user=NOBODY_UID).stdout == "secure --\n"
    # Root, without more rights than its user, takes only what no other user may write.
    assert programs.run("host", library).stdout == "hH\n"
    (links / "toy_plugins").chmod(0o777)
    refused = programs.run("host", library)
    assert refused.stdout == "--\n"
    assert "users other than its owner can change it" in refused.stderr


@needs_root
@pytest.mark.parametrize("kind", RIGHTS)
def test_secure_process_opens_no_libzstd(
    workbench: Workbench, programs: Programs, open_path: Path, kind: str
) -> None:
    """On a driver of CUDA 12.2, a pack with zstd images is refused, though libzstd is here."""
    # It says when it is opened, and has libzstd's functions.
    opened = '__attribute__((constructor)) static void open(void) { puts("opened"); }'
    (open_path / "zstd.c").write_text(f"#include <stdio.h>\n{opened}\n")
    needs = ("-Wl,--no-as-needed", "-l:libzstd.so.1")
    libzstd = open_path / "libzstd-that-speaks.so"
    compile_c(libzstd, "-shared", "-fPIC", str(open_path / "zstd.c"), *needs)
    driver = make_driver(open_path / "cuda", 12020)
    places = (
        f'-DNVML="{programs.folder / "libnvidia-ml.so.1"}"',
        f'-DLIBCUDA="{driver}/libcuda.so.1"',
        f'-DLIBZSTD="{libzstd}"',
    )
    objects = loader_objects(*STRICT, *places, "-fvisibility=hidden")
    loader = compile_c(open_path / "loader.so", "-shared", *objects, "-ldl", "-lpthread")
    core = make_core(workbench, open_path / "site", loader)
    assert programs.run("host", core.library, user=NOBODY_UID).stdout == "opened\nhH\n"
    # The variables, which point to a newer driver and another GPU, change nothing.
    newer = make_driver(open_path / "newer", 13000)
    variables = {
        "LD_LIBRARY_PATH": f"{newer}:{open_path}",
        "LD_PRELOAD": str(libzstd),
        "ARCHSPLIT_CAPABILITY": "8.0",
        "ARCHSPLIT_STRICT": "1",
    }
    name = programs.with_rights("host", kind)
    refused = programs.run(name, core.library, user=NOBODY_UID, **variables)
    assert (refused.returncode, refused.stdout) == (0, "secure --\n")
    assert [
        line.partition(" has zstd images, ")[2]
        for line in refused.stderr.splitlines()
        if "zstd" in line
    ] == ["which drivers for CUDA 12.2 can't read; update the driver to CUDA 12.4"]


@needs_root
def test_read_only_installation_is_enough(
    workbench: Workbench, programs: Programs, core: SplitSite
) -> None:
    path = workbench.plugin(core.site, "sm_90")
    for each in [*core.site.rglob("*"), core.site]:
        each.chmod(0o555)
    before = {each: each.stat().st_mtime_ns for each in core.site.rglob("*")}
    host = programs.run("host", core.library, user=NOBODY_UID)
    probe = programs.run("probe", core.site / "vecsort_plugins", "--open", 0, user=NOBODY_UID)
    for each in [core.site, *core.site.rglob("*")]:
        each.chmod(0o755)
    assert (host.stdout, host.stderr) == ("hH\n", "")
    assert f"candidate accepted: {path}" in probe.stdout
    assert "opened, the answer is 42" in probe.stdout
    assert {each: each.stat().st_mtime_ns for each in core.site.rglob("*")} == before
