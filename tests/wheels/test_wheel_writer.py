from __future__ import annotations

import hashlib
import os
import resource
import signal
import stat
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from wheel_samples import EPOCH, PLATFORMS, core_plan, plugin_plan

from archsplit.errors import DiskFullError, InputError, OutputError, WheelError
from archsplit.system.env import ZIP_EPOCH
from archsplit.system.fs import output_errors
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.writer import WheelDraft, WheelMember, write_wheel
from archsplit.wheels.zip_writer import LATEST_ZIP_TIME, pack
from child_processes import running

HERE = Path(__file__).parent


def write(folder: Path, plan: WheelDraft) -> Path:
    return write_wheel(folder, plan, epoch=EPOCH)


def test_archive_has_fixed_order_names_and_modes(tmp_path: Path) -> None:
    path = write(tmp_path, core_plan())
    assert path == tmp_path / f"vecsort-1.2.3-py3-none-{'.'.join(PLATFORMS)}.whl"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert [*modes] == [
        "vecsort/__init__.py",
        "vecsort/_archsplit/libloader.so",
        "vecsort/ünï, 'cödé'.txt",
        "vecsort-1.2.3.dist-info/METADATA",
        "vecsort-1.2.3.dist-info/WHEEL",
        "vecsort-1.2.3.dist-info/licenses/LICENSE",
        "vecsort-1.2.3.dist-info/licenses/third_party/NOTICE",
        "vecsort-1.2.3.dist-info/RECORD",
    ]
    assert modes.pop("vecsort/_archsplit/libloader.so") == stat.S_IFREG | 0o755
    assert set(modes.values()) == {stat.S_IFREG | 0o644}


def test_bytes_do_not_change_from_day_to_day(tmp_path: Path) -> None:
    plan = replace(core_plan(), name=replace(core_plan().name, platforms=("linux_x86_64",)))
    path = write_wheel(tmp_path, plan, epoch=EPOCH)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == (
        "7c6e97b15b849b78fcb7cd44bcec009345788d5fbb4b2c73ed34fd9890e371bb"
    )


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, (1980, 1, 1, 0, 0, 0)),
        (ZIP_EPOCH, (1980, 1, 1, 0, 0, 0)),
        (EPOCH, (2023, 11, 14, 22, 13, 20)),
        (LATEST_ZIP_TIME, (2107, 12, 31, 23, 59, 58)),
        (1 << 40, (2107, 12, 31, 23, 59, 58)),
    ],
)
def test_times_are_the_epoch_in_utc(tmp_path: Path, epoch: int, expected: tuple[int, ...]) -> None:
    with zipfile.ZipFile(write_wheel(tmp_path, plugin_plan(), epoch=epoch)) as archive:
        assert {info.date_time for info in archive.infolist()} == {expected}


def test_files_bytes_and_packed_bytes_give_the_same_wheel(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(os.urandom(1 << 20) + bytes(range(200)) * 10000)
    one = write(tmp_path, plugin_plan(library)).read_bytes()
    for content in (library.read_bytes(), pack(library)):
        assert one == write(tmp_path, plugin_plan(content)).read_bytes()


def test_the_order_of_a_plan_s_members_does_not_matter(tmp_path: Path) -> None:
    plan = core_plan()
    one = write(tmp_path, plan).read_bytes()
    turned = replace(plan, members=plan.members[::-1], licenses=plan.licenses[::-1])
    assert one == write(tmp_path, turned).read_bytes()


CHILD = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from wheel_samples import EPOCH, core_plan
from archsplit.wheels.writer import write_wheel
os.umask(int(sys.argv[2], 8))
print(write_wheel(Path(sys.argv[3]), core_plan(), epoch=EPOCH))
"""


@pytest.mark.parametrize(
    ("zone", "umask", "locale", "seed"),
    [("Pacific/Kiritimati", "077", "C", "1"), ("America/St_Johns", "000", "C.UTF-8", "2")],
)
def test_the_surroundings_leave_no_trace(
    tmp_path: Path, zone: str, umask: str, locale: str, seed: str
) -> None:
    ours, theirs, elsewhere = (tmp_path / name for name in ("ours", "theirs", "elsewhere"))
    for folder in (ours, theirs, elsewhere):
        folder.mkdir()
    environment = {"TZ": zone, "LC_ALL": locale, "PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(HERE), umask, str(theirs)],
        cwd=elsewhere,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    wheel = Path(done.stdout.strip())
    assert wheel.read_bytes() == write(ours, core_plan()).read_bytes()
    assert stat.S_IMODE(wheel.stat().st_mode) == 0o644


def test_large_member_is_written_as_zip64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of a kilobyte instead of two gigabytes: the way is the same."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    path = write(tmp_path, plugin_plan(os.urandom(5000)))
    with open_wheel(path) as wheel:
        wheel.check_contents()
        assert len(wheel.read("vecsort_plugins/cuda/sm_90/libvecsort.so")) == 5000


def test_invalid_plan_is_refused_with_each_fault() -> None:
    with pytest.raises(WheelError) as caught:
        replace(
            core_plan(),
            metadata=replace(core_plan().metadata, version="1.2.4", license_files=()),
            members=(
                WheelMember(name="a", content=b""),
                WheelMember(name="a", content=b""),
                WheelMember(name="a/b", content=b""),
                WheelMember(name="other-1.dist-info/RECORD", content=b""),
            ),
        )
    assert str(caught.value).splitlines()[1:] == [
        "its metadata is of VecSort 1.2.4",
        "its license files differ from License-File in its metadata",
        "other-1.dist-info/RECORD: a .dist-info folder may have only METADATA, WHEEL and RECORD",
        "a: occurs 2 times",
        "a: is a file, and a folder of others",
    ]


def test_missing_source_file_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone"):
        write(tmp_path, plugin_plan(tmp_path / "gone"))
    assert not [*tmp_path.iterdir()]


def test_folder_is_refused_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "lib.so").mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        write(tmp_path, plugin_plan(tmp_path / "lib.so"))


def test_endless_file_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/dev/zero changed while it was packed"):
        write(tmp_path, plugin_plan(Path("/dev/zero")))
    assert not [*tmp_path.iterdir()]


def test_missing_output_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="can't write"):
        write(tmp_path / "gone", plugin_plan())


def test_full_disk_is_a_disk_full_error() -> None:
    full = Path("/dev/full")
    with pytest.raises(DiskFullError, match="no space left"), output_errors(full):  # noqa: SIM117
        with full.open("wb") as file:
            plugin_plan(os.urandom(1 << 16)).write(file, epoch=EPOCH)


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    before = write(tmp_path, plugin_plan()).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OutputError, match="File too large"):
            write(tmp_path, plugin_plan(os.urandom(1 << 20)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (left,) = tmp_path.iterdir()
    assert left.read_bytes() == before


ENDLESS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from wheel_samples import EPOCH, plugin_plan
from archsplit.wheels.writer import write_wheel
write_wheel(Path(sys.argv[2]), plugin_plan(Path(sys.argv[3])), epoch=EPOCH)
"""


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    library, out = tmp_path / "lib.so", tmp_path / "out"
    out.mkdir()
    with library.open("wb") as file:
        file.truncate(4 << 30)
    with running(
        [sys.executable, "-c", ENDLESS, str(HERE), str(out), str(library)],
        stderr=subprocess.PIPE,
    ) as child:
        while not [*out.iterdir()]:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert not [*out.iterdir()]
