from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from index_samples import DAY, EPOCH, build_folder, plan, release

from archsplit.cli.main import main
from archsplit.errors import ConflictError, InputError, OutputError, VerifyError, WheelError
from archsplit.index.static_folder import LOCK, check_index, lock_folder, open_folder
from archsplit.index.static_model import IndexRelease, RetentionLimits
from archsplit.index.static_update import IndexChange, IndexUpdate, update_index
from archsplit.wheels.filename import distribution_name
from archsplit.wheels.writer import write_wheel
from killed_children import leave_half_an_output

HERE = Path(__file__).parent


def of(project: str, version: str) -> IndexRelease:
    return IndexRelease(project=distribution_name(project), version=version)


def update(
    root: Path,
    *add: Path,
    day: int = 0,
    yank: dict[IndexRelease, str] | None = None,
    unyank: tuple[IndexRelease, ...] = (),
    limits: RetentionLimits | None = None,
    grace: int = 0,
) -> IndexUpdate:
    change = IndexChange(
        add=add,
        yank=yank or {},
        unyank=unyank,
        limits=limits,
        grace=grace,
        now=EPOCH + day * DAY,
    )
    with lock_folder(root, print) as folder:
        return update_index(folder, change)


def files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != LOCK
    }


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def links(page: Path) -> dict[str, str]:
    """File names and their hashes, as an installer reads them from the HTML."""
    parser = _Links()
    parser.feed(page.read_text())
    pairs = [link.partition("#sha256=")[::2] for link in parser.links]
    return {unquote(name): digest for name, digest in pairs}


def assert_no_reader_is_misled(root: Path) -> None:
    """Each page names what is there, and no core is on one whose plugins are on none."""
    by_page: dict[str, dict[str, dict[str, str]]] = {"index.html": {}, "index.json": {}}
    for page in root.glob("*/index.html"):
        by_page["index.html"][page.parent.name] = links(page)
    for page in root.glob("*/index.json"):
        found = json.loads(page.read_text())["files"]
        by_page["index.json"][page.parent.name] = {
            one["filename"]: one["hashes"]["sha256"] for one in found
        }
    for projects in by_page.values():
        for project, wheels in projects.items():
            for name, digest in wheels.items():
                assert hashlib.sha256((root / project / name).read_bytes()).hexdigest() == digest
                assert (root / project / f"{name}.metadata").exists()
        for name in projects.get("toy", {}):
            version = name.split("-")[1]
            for target in ("sm80", "sm90"):
                plugin = f"toy_{target}-{version}-py3-none-any.whl"
                assert plugin in projects.get(f"toy-{target}", {})


def test_a_build_s_folder_is_taken_by_its_report(tmp_path: Path) -> None:
    build = build_folder(tmp_path / "build", "1.0")
    release(build, "9.9")  # lies there, but isn't the build's
    done = update(tmp_path / "index", build)
    assert [name.split("-")[1] for name in done.added] == ["1.0"] * 3
    assert check_index(open_folder(tmp_path / "index")) == 3
    again = update(tmp_path / "index", build, day=1)
    assert again.added == ()
    assert set(again.unchanged) == set(done.added)
    page = json.loads((tmp_path / "index" / "toy" / "index.json").read_text())
    assert page["files"][0]["upload-time"] == "2026-11-21T00:00:00Z"
    assert page["versions"] == ["1.0"]


def test_wheel_missing_in_the_report_is_refused(tmp_path: Path) -> None:
    build = build_folder(tmp_path / "build", "1.0")
    *_, other = release(tmp_path / "other", "1.0", ("sm80",))
    other.replace(build / other.name)
    with pytest.raises(VerifyError, match="is not the file that the report beside it names"):
        update(tmp_path / "index", build)


def test_index_takes_folders_and_wheels_and_refuses_others(tmp_path: Path) -> None:
    wheels = release(tmp_path / "wheels", "1.0")
    assert len(update(tmp_path / "a", tmp_path / "wheels").added) == 3
    assert len(update(tmp_path / "b", *wheels).added) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no wheel in"):
        update(tmp_path / "c", tmp_path / "empty")
    with pytest.raises(InputError, match=r"no such file or folder: .*gone"):
        update(tmp_path / "c", tmp_path / "gone")
    (tmp_path / "bad-1.0-py3-none-any.whl").write_bytes(b"no zip")
    with pytest.raises(WheelError):
        update(tmp_path / "c", tmp_path / "bad-1.0-py3-none-any.whl")


def test_another_wheel_of_the_same_name_changes_nothing(tmp_path: Path) -> None:
    update(tmp_path / "index", build_folder(tmp_path / "build", "1.0"))
    before = files(tmp_path / "index")
    release(tmp_path / "other", "1.1")
    release(tmp_path / "other", "1.0", ("sm80",))
    with pytest.raises(ConflictError, match=r"toy-1\.0-py3-none-any\.whl: [0-9a-f]+ on the index"):
        update(tmp_path / "index", tmp_path / "other")
    assert files(tmp_path / "index") == before


def test_a_core_does_not_come_without_its_plugins(tmp_path: Path) -> None:
    plugin, other, core = release(tmp_path / "wheels", "1.0")
    with pytest.raises(VerifyError, match=r"toy-1\.0.* names toy-sm90==1\.0, which is not there"):
        update(tmp_path / "index", core, plugin)
    assert not (tmp_path / "index" / "toy").exists()
    update(tmp_path / "index", plugin)
    update(tmp_path / "index", other)
    update(tmp_path / "index", core)
    assert check_index(open_folder(tmp_path / "index")) == 3


def test_yank_is_undone_by_unyank(tmp_path: Path) -> None:
    root = tmp_path / "index"
    update(root, build_folder(tmp_path / "build", "1.0"))
    before = files(root)
    update(root, yank={of("toy", "1.0"): "why <not>"})
    assert 'data-yanked="why &lt;not&gt;"' in (root / "toy" / "index.html").read_text()
    assert 'data-yanked="why &lt;not&gt;"' in (root / "toy-sm80" / "index.html").read_text()
    update(root, yank={of("toy", "1.0"): ""})
    assert json.loads((root / "toy" / "index.json").read_text())["files"][0]["yanked"] is True
    update(root, unyank=(of("toy", "1.0.0"),))  # the same version
    assert files(root) == before
    with pytest.raises(InputError, match=r"toy==2 is not in the index"):
        update(root, yank={of("toy", "2"): ""})


def test_files_stay_for_readers_of_older_pages(tmp_path: Path) -> None:
    root, wheel = tmp_path / "index", "toy/toy-1.0-py3-none-any.whl"
    for day, version in enumerate(("1.0", "1.1")):
        update(root, build_folder(tmp_path / version, version), day=day)
    done = update(root, day=3, limits=RetentionLimits(seconds=2 * DAY), grace=3600)
    assert [str(one) for one in done.pruned[0].releases] == [
        "toy==1.0",
        "toy-sm80==1.0",
        "toy-sm90==1.0",
    ]
    assert wheel in done.waiting
    assert len(done.waiting) == 6
    assert (root / wheel).exists()
    assert "1.0-py3" not in (root / "toy" / "index.html").read_text()
    assert update(root, day=3, grace=3600).waiting == done.waiting
    assert update(root, day=4, grace=3600).waiting == ()
    assert not (root / wheel).exists()
    assert json.loads((root / ".archsplit-left.json").read_text())["left"] == {}


def test_unrecorded_files_are_not_lost(tmp_path: Path) -> None:
    root = tmp_path / "index"
    update(root, build_folder(tmp_path / "1.0", "1.0"))
    (root / ".archsplit-left.json").write_text("{]")
    stray = root / "toy" / "toy-9.9-py3-none-any.whl"
    stray.write_bytes(b"")
    assert update(root, grace=60).waiting == ("toy/toy-9.9-py3-none-any.whl",)
    assert stray.exists()


def test_pages_are_written_again(tmp_path: Path) -> None:
    root = tmp_path / "index"
    update(root, build_folder(tmp_path / "build", "1.0"))
    before = files(root)
    (root / "index.html").unlink()
    (root / "toy" / "index.html").write_text("half")
    with pytest.raises(VerifyError, match=r"index\.html: is missing[\s\S]*writes pages again"):
        check_index(open_folder(root))
    update(root)
    assert files(root) == before


def test_foreign_files_in_the_index_folder_stay(tmp_path: Path) -> None:
    """The folder may have more in it than an index: a project, a web server's settings."""
    build = build_folder(tmp_path / "dist", "1.0")
    update(tmp_path, build)
    own = (
        ".htaccess",
        ".toy-1.0-py3-none-any.whl.k3_x9abz",
        ".archsplit-notes",
        ".index.html.saved",
        "draft.whl",
    )
    foreign = [tmp_path / folder / name for folder in ("toy", "src") for name in own]
    (tmp_path / "src").mkdir()
    for path in foreign:
        path.write_text("mine")
    left = leave_half_an_output(tmp_path / "index.html")
    assert {path.exists() for path in left} == {True}
    wheels = sorted(build.iterdir())
    assert update(tmp_path, day=1).waiting == ()
    assert sorted(build.iterdir()) == wheels
    assert all(path.exists() for path in foreign)
    assert {path.exists() for path in left} == {False}


def test_website_is_refused_as_an_index(tmp_path: Path) -> None:
    build = build_folder(tmp_path / "build", "1.0")
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("<h1>Welcome</h1>")
    with pytest.raises(InputError, match=r"index\.html is not an index page"):
        update(site, build)
    assert (site / "index.html").read_text() == "<h1>Welcome</h1>"
    assert not (site / "toy").exists()


def test_lost_or_damaged_file_is_restored(tmp_path: Path) -> None:
    root, build = tmp_path / "index", build_folder(tmp_path / "build", "1.0")
    update(root, build)
    before = files(root)
    (root / "toy" / "toy-1.0-py3-none-any.whl").write_bytes(b"other")
    (root / "toy-sm80" / "toy_sm80-1.0-py3-none-any.whl").unlink()
    (root / "toy-sm90" / "toy_sm90-1.0-py3-none-any.whl.metadata").unlink()
    again = update(root, build, day=1)
    assert (again.added, len(again.unchanged)) == ((), 3)
    assert len(again.restored) == 3
    assert files(root) == before


def test_any_web_server_may_read_it(tmp_path: Path) -> None:
    build = build_folder(tmp_path / "build", "1.0")
    before = os.umask(0o077)
    try:
        update(tmp_path / "deep" / "index", build)
    finally:
        os.umask(before)
    for path in (tmp_path / "deep" / "index").rglob("*"):
        if path.name != LOCK:
            assert path.stat().st_mode & 0o044 == 0o044, path
    assert (tmp_path / "deep" / "index").stat().st_mode & 0o777 == 0o755


def test_check_finds_everything(tmp_path: Path) -> None:
    root = tmp_path / "index"
    update(root, build_folder(tmp_path / "build", "1.0"))
    (root / "toy" / "toy-1.0-py3-none-any.whl").write_bytes(b"other")
    (root / "toy-sm80" / "toy_sm80-1.0-py3-none-any.whl").unlink()
    with (root / "toy-sm90" / "toy_sm90-1.0-py3-none-any.whl.metadata").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(VerifyError) as caught:
        check_index(open_folder(root))
    lines = str(caught.value).splitlines()[1:-1]
    assert [line.strip().partition(":")[0] for line in lines] == [
        "toy-sm80/toy_sm80-1.0-py3-none-any.whl",
        "toy-sm90/toy_sm90-1.0-py3-none-any.whl.metadata",
        "toy/toy-1.0-py3-none-any.whl",
    ]


@pytest.mark.parametrize("text", ["{", "{}", '{"name": "toy", "files": [{"filename": "x"}]}'])
def test_page_not_written_by_archsplit_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "index.json").write_text(text)
    with pytest.raises(InputError, match="is not a page of this index") as caught:
        update(tmp_path)
    assert len(str(caught.value).splitlines()) == 2  # the second one is the hint


def test_added_wheel_reads_no_page_of_other_projects(tmp_path: Path) -> None:
    root = tmp_path / "index"
    update(root, *release(tmp_path / "toy", "1.0"))
    update(root, *release(tmp_path / "other", "1.0", project="other"))
    page = root / "toy" / "index.json"
    whole = page.read_text()
    page.write_text("{")
    done = update(root, *release(tmp_path / "next", "1.1", project="other"))
    assert len(done.added) == 3
    assert done.wheels is None
    page.write_text(whole)
    assert check_index(open_folder(root)) == 9


def test_damaged_root_page_is_written_again(tmp_path: Path) -> None:
    root = tmp_path / "index"
    update(root, *release(tmp_path / "toy", "1.0"))
    (root / "index.json").write_text("{}")
    update(root, *release(tmp_path / "other", "1.0", project="other"))
    assert check_index(open_folder(root)) == 6


def test_page_in_the_wrong_folder_is_refused(tmp_path: Path) -> None:
    update(tmp_path, *release(tmp_path / "wheels", "1.0"))
    (tmp_path / "toy").rename(tmp_path / "other")
    with pytest.raises(InputError, match=r"other/index\.json is the page of toy"):
        update(tmp_path)


def test_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a package index"):
        open_folder(tmp_path)
    with pytest.raises(InputError, match="can't read"):
        open_folder(tmp_path / "gone")


def test_a_full_disk_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "index"
    update(root, build_folder(tmp_path / "1.0", "1.0"))
    before = files(root)
    release(tmp_path / "1.1", "1.1")
    large = plan("toy-sm90", "1.1", {"large": random.Random(1).randbytes(32_000)})
    write_wheel(tmp_path / "1.1", large, epoch=EPOCH)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, limits[1]))
    try:
        with pytest.raises(OutputError, match="File too large"):
            update(root, tmp_path / "1.1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files(root) == before


CHILD = """
import os, shutil, signal, sys
from pathlib import Path
here, folder = sys.argv[1:]
sys.path[:0] = [here, str(Path(here).parent)]
from test_index_update import update_of_the_third_day

def counting(real):
    def act(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return act

Path.replace, Path.unlink = counting(Path.replace), counting(Path.unlink)
steps, status = 0, 1
while status:
    root = Path(folder) / f"killed-{steps}"
    shutil.copytree(Path(folder) / "before", root)
    left = steps
    child = os.fork()
    if not child:
        update_of_the_third_day(root)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in {0, signal.SIGKILL}, status
    steps += 1
print(steps)
"""


def update_of_the_third_day(root: Path) -> IndexUpdate:
    """Adds a release, and prunes one."""
    return update(root, root.parent / "1.2", day=2, limits=RetentionLimits(seconds=DAY))


def test_update_killed_at_any_step_is_completed_by_the_next(tmp_path: Path) -> None:
    for day, version in enumerate(("1.0", "1.1", "1.2")):
        build_folder(tmp_path / version, version)
        if version != "1.2":
            update(tmp_path / "before", tmp_path / version, day=day)
    command = [sys.executable, "-c", CHILD, str(HERE), str(tmp_path)]
    steps = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert steps > 20
    expected = files(tmp_path / f"killed-{steps - 1}")
    assert not [name for name in expected if "1.0-" in name]
    for number in range(steps):
        root = tmp_path / f"killed-{number}"
        assert_no_reader_is_misled(root)
        update_of_the_third_day(root)
        assert check_index(open_folder(root)) == 6
        assert files(root) == expected


def test_two_writers_take_turns(tmp_path: Path) -> None:
    root = tmp_path / "index"
    builds = [build_folder(tmp_path / f"1.{number}", f"1.{number}") for number in range(6)]
    threads = [threading.Thread(target=update, args=(root, build)) for build in builds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert check_index(open_folder(root)) == 18


def test_another_writer_may_make_the_folder_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, mkdir = tmp_path / "index", Path.mkdir

    def made_by_another(path: Path, mode: int = 0o777, **options: bool) -> None:
        if path == root and not root.exists():
            mkdir(root)
        mkdir(path, mode, **options)

    build = build_folder(tmp_path / "1.0", "1.0")
    monkeypatch.setattr(Path, "mkdir", made_by_another)
    update(root, build)
    assert check_index(open_folder(root)) == 3


def test_reader_during_an_update_sees_matching_digests(tmp_path: Path) -> None:
    root = tmp_path / "index"
    builds = [build_folder(tmp_path / f"1.{number}", f"1.{number}") for number in range(6)]
    update(root, builds[0])

    def write() -> None:
        for day, build in enumerate(builds[1:], 1):
            update(root, build, day=day, limits=RetentionLimits(seconds=DAY), grace=7 * DAY)

    writer = threading.Thread(target=write)
    writer.start()
    looks = 0
    while writer.is_alive():
        for name, digest in links(root / "toy" / "index.html").items():
            assert hashlib.sha256((root / "toy" / name).read_bytes()).hexdigest() == digest
        looks += 1
    writer.join()
    assert looks > 1


def test_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OutputError, match="can't lock"):
        update(tmp_path)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    root = tmp_path / "index"
    assert main(["index", str(root), "--add", str(build_folder(tmp_path / "1.0", "1.0"))]) == 0
    return root


def test_json_lists_uploads_in_order(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    build = str(build_folder(tmp_path / "1.1", "1.1"))
    assert main(["index", str(index), "--add", build, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    pages = [name for name in said["put"] if "index." in name]
    assert said["put"][: -len(pages)] == [name for name in said["put"] if ".whl" in name]
    assert [name.partition("/")[0] for name in pages] == [
        *("toy-sm80", "toy-sm80", "toy-sm90", "toy-sm90", "toy", "toy")
    ]
    limits = ("age=1s", "size=1TB")
    assert main(["index", str(index), "--prune", *limits, "--grace", "0s", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["put"], said["delete"]) == ([], [])  # nothing is older than the clock
    assert main(["index", str(index), "--prune", "size=1", "--grace", "0s", "--json"]) == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert [name.partition("/")[0] for name in said["put"]][::2] == ["toy", "toy-sm90", "toy-sm80"]
    assert len(said["delete"]) == 6
    assert said["pruned"] == [["toy==1.0", "toy-sm80==1.0", "toy-sm90==1.0"]]
    assert "more than the limit of 1 B" in captured.err


def test_index_command_checks_and_yanks(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(index), "--check"]) == 0
    assert main(["index", str(index), "--check", "--json"]) == 0
    assert main(["index", str(index)]) == 0
    assert main(["index", str(index), "--yank", "Toy==1.0.1", "--check"]) == 14
    assert main(["index", str(index), "--yank", "Toy==1.0", "--reason", "x", "--check"]) == 0
    said = capsys.readouterr().out
    assert "3 wheels match the pages of the index" in said
    assert '"sound": true' in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prune", "weight=3"],
        ["--prune", "age=3"],
        ["--prune", "size=-3"],
        ["--yank", "toy"],
        ["--yank", "toy==x"],
        ["--yank", ".==1"],
        ["--reason", "no yank"],
    ],
)
def test_the_command_refuses(index: Path, arguments: list[str]) -> None:
    before = files(index)
    assert main(["index", str(index), *arguments]) == 2
    assert files(index) == before


def test_the_command_refuses_a_grace(index: Path) -> None:
    assert main(["index", str(index), "--grace", "long"]) == 2


def test_no_index_is_made_by_looking(tmp_path: Path) -> None:
    assert main(["index", str(tmp_path / "gone")]) == 14
    assert main(["index", str(tmp_path / "gone"), "--check"]) == 14
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--reason", "x"), "--reason needs --yank"),
        (("--prune", "age=14y"), "in s, m (minutes), h, d, w; or size=20GB, in B, kB"),
        (("--prune", "days=14"), "in s, m (minutes), h, d, w"),
        (("--grace", "soon"), "is not a time, such as 30m or 1h"),
    ],
)
def test_wrong_argument_is_refused_with_the_valid_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], fault: str
) -> None:
    release(tmp_path / "1.0", "1.0")
    update(tmp_path / "index", tmp_path / "1.0")
    try:
        code = main(["index", str(tmp_path / "index"), *words])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert (code, fault in capsys.readouterr().err) == (2, True)
