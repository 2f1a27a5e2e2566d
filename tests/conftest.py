"""Fixtures that several parts share; everything is real, and small."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import site
import stat
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import is_hypothesis_test, settings
from hypothesis.strategies import characters

import compiled_once
from archsplit.nvcc.toolkit import (
    HostTools,
    Toolkit,
    choose_toolkit,
    find_host_tools,
    nvcc_candidates,
    probe_toolkits,
)
from archsplit.system.process import SubprocessRunner
from compiled_samples import Samples, make_samples
from known_tools import remember_tools
from made_once import made_once
from small_toolkit import make_small_toolkit
from warm_programs import run_where_warm

if TYPE_CHECKING:
    from collections.abc import Iterator

# Machines are noisy: how long an example takes says nothing about the code.
# Somebody else's clone may be read-only; Hypothesis warns where it can't keep its examples.
_EXAMPLES = next(each for each in (Path(".hypothesis"), Path()) if each.exists())
_DATABASE = settings().database if os.access(_EXAMPLES, os.W_OK) else None
# The same examples at each run, as Hypothesis itself has it where CI is set. The stress session
# draws new ones, and more of them.
settings.register_profile(
    "archsplit", deadline=None, database=None, derandomize=True, max_examples=40
)
settings.register_profile("random", deadline=None, database=_DATABASE, max_examples=200)
settings.load_profile("archsplit")


NOT_MEASURED = {
    *("api", "build", "cli", "docs", "house", "lightgbm", "loader", "slim", "split"),
    *("test_elf_shrink", "test_index_install", "test_inspect_verbs", "test_publish_command"),
    *("test_publish_index", "test_publish_whole", "test_scan_bad_input"),
}
"""Folders, and long files, whose tests are not needed for the floor of the pure modules."""


QUICK = {
    *("arch", "cache", "compiler", "devicecode", "formats", "house", "inspect", "nvcc", "recipe"),
    *("scheduler", "system", "wheels"),
}
"""Folders with tests of `nox -s quick`: pure Python, without nvcc, environments and networks."""
NOT_QUICK = {"whole_toolkit", "samples", "host", "test_remote_stores", "test_memory_pressure"}
"""Fixtures that compile, and files with servers or seconds of waiting."""


LONGEST = (
    *("test_docs_pages", "test_release_check", "test_split_install", "test_slim_site_kill"),
    *("test_stale_hits", "test_mirror", "test_loader_hardening", "test_wrapper_cache"),
    *("test_publish_command", "test_base_dir", "test_publish_index", "test_slim_faults"),
    *("test_recipe_cache", "test_loader_quick_look", "test_standing_in", "test_wrapper_farm"),
    *("test_command", "test_split_wheel", "test_wrapper_outputs", "test_rules_of_hits"),
    *("test_loader_wreck", "test_rdc", "test_build_systems", "test_dask", "test_backend_metadata"),
    *("test_build", "test_nightly_build", "test_install", "test_backend"),
    *("test_wheel_press", "test_wheel_reader", "test_cache_pure", "test_house", "test_shared_pool"),
)
"""Files of more than ten CPU seconds, longest first: workers begin with them and end together.

The last line has the files of more than three in the quick session.
"""


# Thousands of collected tests live until the end, and each round of the garbage collector would
# look at all of them: a fifth of the CPU time of short tests.
gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


MEASURED = os.environ.get("ARCHSPLIT_TEST_MEASURED", "").split()
"""Modules of which every branch must be covered; none where coverage doesn't count."""


@pytest.hookimpl(trylast=True)  # after the plugin has begun
def pytest_sessionstart(session: pytest.Session) -> None:
    """Measure imports once, before the workers start, and in the workers only what tests run.

    Collecting, fixtures and pytest itself would take half as long again.
    """
    plugin = session.config.pluginmanager.get_plugin("_cov")
    if not MEASURED or plugin is None:
        return
    if hasattr(session.config, "workerinput"):
        plugin.cov_controller.pause()
    else:
        for module in MEASURED:
            import_module(module)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    plugin = item.config.pluginmanager.get_plugin("_cov")
    if not MEASURED or plugin is None or not _is_measured(item):
        return (yield)
    plugin.cov_controller.resume()
    try:
        return (yield)
    finally:
        plugin.cov_controller.pause()


def _is_measured(item: pytest.Item) -> bool:
    """Return False for tests of whole commands and programs, which take far longer if traced."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    is_long = not NOT_MEASURED.isdisjoint((folder, item.path.stem))
    is_quick = item.get_closest_marker("quick") is not None
    # What the examples of a property reach must be reached by a test of its own, too.
    is_property = is_hypothesis_test(getattr(item, "obj", None))
    return (is_quick or folder != "compiler") and not is_long and not is_property


def pytest_configure(config: pytest.Config) -> None:
    # Under nohup, or in the background of a script, SIGINT is ignored, and children inherit that:
    # Ctrl-C would never reach the programs that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None and config.args == config.getini("testpaths"):
        number = int(worker["workerid"].removeprefix("gw"))
        config.args = _folders_from(number / worker["workercount"], config)


def _folders_from(part: float, config: pytest.Config) -> list[str]:
    """Return all folders, beginning in the middle: workers read what another one has rewritten.

    pytest compiles `assert` for a second per 10,000 lines, and each worker would do that for all.
    """
    here = Path(__file__).parent
    folders = [path for path in sorted(here.iterdir()) if [*path.glob("test_*.py")]]
    folders = [path for path in folders if not pytest_ignore_collect(path, config)]
    sizes = [sum(file.stat().st_size for file in path.glob("*.py")) for path in folders]
    before = [sum(sizes[:number]) / sum(sizes) for number in range(len(sizes))]
    begin = next(number for number, share in enumerate(before) if share >= part)
    return list(map(str, folders[begin:] + folders[:begin]))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # Without reading the others: half of the files, and moto and dask with them.
    is_other = collection_path.parent == Path(__file__).parent and collection_path.name not in QUICK
    is_quick = str(config.option.markexpr).startswith("quick ")
    return True if is_quick and is_other and collection_path.is_dir() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = {item.path.stem, *getattr(item, "fixturenames", ())}
        markers = filter(None, map(item.get_closest_marker, ("nvcc", "zig")))
        is_compiled = not NOT_QUICK.isdisjoint(names) or any(markers)
        if item.path.parent.name in QUICK and not is_compiled:
            item.add_marker("quick")
    # One process keeps the order of its command line, as tools/mutants.py needs it.
    if "PYTEST_XDIST_WORKER" in os.environ:
        rank = {name: place for place, name in enumerate(LONGEST)}
        # Of the others, what compiles and waits comes before thousands of short tests. All workers
        # have the same order in the end.
        items.sort(
            key=lambda item: (
                rank.get(item.path.stem, len(rank)),
                item.get_closest_marker("quick") is not None,
                item.path,
            )
        )


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give this test run a cache folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHSPLIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        # Off, because most tests are about compiling, which a hit would skip.
        patch.setenv("ARCHSPLIT_CACHE", "off")
        # zig keeps what it has compiled in HOME, which may be read-only.
        zig = made_once(tmp_path_factory, "zig", lambda folder: str(folder))
        patch.setenv("ZIG_GLOBAL_CACHE_DIR", zig)
        # Hypothesis makes tables of all characters, and keeps them for later runs.
        letters = characters(categories=["Lu"])
        if "PYTEST_XDIST_WORKER" in os.environ:
            made_once(tmp_path_factory, "characters", lambda _: letters.validate())
        compiled_once.FOLDERS.append(
            Path(made_once(tmp_path_factory, "compiled", lambda folder: str(folder)))
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def _warm_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fork pip, twine and auditwheel where archsplit runs in the test's own process."""
    remember_tools(made_once(tmp_path_factory, "known-tools", lambda folder: folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SubprocessRunner, "run", run_where_warm)
        yield


@pytest.fixture(scope="session")
def whole_toolkit() -> Toolkit:
    """The one from the index, which the test environment brings, whatever the machine has."""
    folders = [Path(folder) for folder in site.getsitepackages()]
    places = nvcc_candidates(explicit=None, environment={}, site_folders=folders)
    return choose_toolkit(probe_toolkits(places, SubprocessRunner()))


@pytest.fixture(scope="session")
def toolkit(whole_toolkit: Toolkit) -> Toolkit:
    """Whole toolkit; some folders' conftest takes the one with small headers instead."""
    return whole_toolkit


@pytest.fixture(scope="session")
def small_toolkit(
    whole_toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Toolkit:
    """Toolkit with the same tools and small headers; the whole one for real wheels and stress."""
    if pytestconfig.option.markexpr in {"stress", "download"}:
        return whole_toolkit

    def make(folder: Path) -> Path:
        return make_small_toolkit(whole_toolkit.nvcc, folder)

    nvcc = made_once(tmp_path_factory, "small-toolkit", make, is_product=False)
    return replace(whole_toolkit, nvcc=nvcc, root=nvcc.parent.parent)


@pytest.fixture(scope="session")
def samples(small_toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Real files of every form that holds device code, compiled once."""

    def make(folder: Path) -> Samples:
        return make_samples(Samples(folder=folder, nvcc=str(small_toolkit.nvcc)))

    return made_once(tmp_path_factory, "samples", make, is_product=False)


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """This process's own, but with no nvcc other than the index's to be found."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    # A folder of PATH may be one that this user can't search.
    path = os.pathsep.join(each for each in folders if not shutil.which("nvcc", path=each))
    others = {name: text for name, text in os.environ.items() if not name.startswith("CUDA_")}
    return {**others, "PATH": path}


@pytest.fixture(scope="session")
def host() -> HostTools:
    return find_host_tools(os.environ, SubprocessRunner())


@pytest.fixture
def null_device(tmp_path: Path) -> Path:
    """A device that takes everything, and is the test's own."""
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.write_bytes(b"")
    except PermissionError:
        pytest.skip("only root can make a device, and open it where the file system allows that")
    return path


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = os.environ.get("ARCHSPLIT_TEST_CACHE")
    return Path(folder) if folder else tmp_path_factory.mktemp("downloads")
