"""The wrapper under the name of nvcc, and before a compiler, as compiler caches are used."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import ToolNotFoundError
from archsplit.nvcc.driver_search import TRIED_VARIABLE, find_real_nvcc, split_launcher, tried_paths
from source_roots import SOURCE_PATH

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class Machine:
    """Folders on the PATH: one with the wrapper, two with nvccs that write down their calls."""

    def __init__(self, folder: Path, toolkit: Toolkit) -> None:
        self.folder = folder
        self.real = toolkit.nvcc
        # As pip writes it: a line with #! ends at the first space of the path.
        python = f"#!/bin/sh\n'''exec' '{sys.executable}' \"$0\" \"$@\"\n' '''\n"
        code = f"{python}from archsplit.cli.nvcc import launcher\nlauncher()\n"
        self.wrapper = program(folder / "own/archsplit-nvcc", code)
        self.first, self.second = self.recorder("first"), self.recorder("second")
        (folder / "p.cpp").write_text("int p() { return 1; }\n")

    def recorder(self, name: str) -> Path:
        text = f'#!/bin/sh\necho {name} >> {self.folder}/calls\nexec "{self.real}" "$@"\n'
        return program(self.folder / name / "nvcc", text)

    def run(self, *argv: str, path: tuple[str, ...] = (), **more: str) -> str:
        """Compile, and return which of the nvccs were started."""
        (self.folder / "calls").write_text("")
        folders = (*(str(self.folder / each) for each in path), "/usr/bin", "/bin")
        done = subprocess.run(
            (*argv, "-c", "p.cpp", "-o", "p.o"),
            cwd=self.folder,
            env={"PATH": ":".join(folders), "PYTHONPATH": SOURCE_PATH, "ARCHSPLIT_CACHE": "off"}
            | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert (self.folder / "p.o").is_file()
        (self.folder / "p.o").unlink()
        return " ".join(sorted(set((self.folder / "calls").read_text().split())))


@pytest.fixture
def machine(tmp_path: Path, toolkit: Toolkit) -> Machine:
    return Machine(tmp_path, toolkit)


@pytest.mark.nvcc
def test_a_link_called_nvcc_stands_for_the_next_on_the_path(machine: Machine) -> None:
    link = machine.folder / "masks/nvcc"
    link.parent.mkdir()
    link.symlink_to(machine.wrapper)
    path = ("masks", "first", "second")
    home = str(machine.folder / "home")
    (machine.folder / "home/bin").mkdir(parents=True)
    (machine.folder / "home/bin/nvcc").symlink_to(machine.real)
    assert machine.run("nvcc", path=path, CUDA_HOME=home) == "first"
    assert machine.run(str(link), path=path[1:], CUDA_HOME=home) == "first"
    # As CMake starts a launcher and a compiler that is the same.
    assert machine.run(str(machine.wrapper), str(link), path=path) == "first"
    assert machine.run(str(machine.wrapper), str(machine.wrapper), path=path) == "first"
    assert machine.run("nvcc", path=path, ARCHSPLIT_NVCC_OPTIONS=f"--nvcc {link}") == "first"


@pytest.mark.nvcc
def test_failure_is_reported_although_the_parent_ignores_sigchld(machine: Machine) -> None:
    (machine.folder / "p.cu").write_text("__global__ void p() { error }\n")
    ignoring = "signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    # Without a shell between them: some shells set the signal to its default.
    launcher = "from archsplit.cli.nvcc import launcher; launcher()"
    start = ("-c", f"import os, signal, sys; {ignoring}", sys.executable, "-c", launcher)
    done = subprocess.run(
        [sys.executable, *start, machine.real, "-c", "p.cu", "-o", "p.o"],
        cwd=machine.folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": SOURCE_PATH, "ARCHSPLIT_CACHE": "off"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert 'identifier "error" is undefined' in done.stderr
    assert not (machine.folder / "p.o").exists()


@pytest.mark.nvcc
@pytest.mark.parametrize(
    "script",
    [
        '#!/bin/sh\nexec archsplit-nvcc "$@"\n',
        '#!/bin/sh\nexec "$WRAPPER" "$@"\n',
    ],
)
def test_script_called_nvcc_causes_no_endless_loop(machine: Machine, script: str) -> None:
    program(machine.folder / "masks/nvcc", script)
    path = ("masks", "own", "first", "second")
    more = {"WRAPPER": str(machine.wrapper)}
    assert machine.run("nvcc", path=path, **more) == "first"
    assert machine.run("archsplit-nvcc", path=path, **more) == "first"


@pytest.mark.nvcc
def test_nvcc_itself_runs_in_a_removed_folder(machine: Machine) -> None:
    (machine.folder / "gone").mkdir()
    script = 'cd gone; rmdir ../gone; exec "$@"'
    made = machine.folder / "p.o"
    done = subprocess.run(
        (
            "/bin/sh",
            "-c",
            script,
            "sh",
            machine.wrapper,
            "-c",
            machine.folder / "p.cpp",
            "-o",
            made,
        ),
        cwd=machine.folder,
        env={
            "PATH": f"{machine.folder / 'first'}:/usr/bin:/bin",
            "PYTHONPATH": SOURCE_PATH,
            "ARCHSPLIT_CACHE": "off",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert "running nvcc itself: the working folder was removed" in done.stderr
    assert made.is_file()


def test_a_launcher_gets_the_compiler_as_ccache_does(machine: Machine) -> None:
    wrapper, path = str(machine.wrapper), ("first", "second")
    home = str(machine.folder / "nowhere")
    assert machine.run(wrapper, "nvcc", path=path, CUDA_HOME=home) == "first"
    assert machine.run(wrapper, str(machine.second), path=path) == "second"
    assert machine.run(wrapper, "second/nvcc", path=path) == "second"
    for cache in ("ccache", "/usr/bin/sccache"):
        assert machine.run(wrapper, cache, "nvcc", path=path) == "first"
        assert machine.run(wrapper, cache, str(machine.second), path=path) == "second"


def test_only_a_cache_before_a_compiler_is_left_out() -> None:
    assert split_launcher(("ccache", "nvcc", "-c")) == ("nvcc", ("-c",))
    assert split_launcher(("ccache", "-c")) == (None, ("ccache", "-c"))
    assert split_launcher(("-c", "nvcc")) == (None, ("-c", "nvcc"))
    assert split_launcher(()) == (None, ())


def test_masquerades_without_a_real_nvcc_list_the_places_tried(tmp_path: Path) -> None:
    wrapper = program(tmp_path / "own/archsplit-nvcc", "#!/bin/sh\n")
    masks = program(tmp_path / "masks/nvcc", '#!/bin/sh\nexec archsplit nvcc -- "$@"\n')
    with pytest.raises(ToolNotFoundError) as caught:
        find_real_nvcc(
            None, wrapper=str(wrapper), environment={"PATH": str(masks.parent)}, site_folders=()
        )
    assert str(caught.value).splitlines()[:3] == [
        "no nvcc; tried",
        f"  PATH: {masks}: it starts archsplit-nvcc again",
        "  index wheels: not found",
    ]


def test_a_real_nvcc_is_never_written_down_as_tried(tmp_path: Path) -> None:
    real = program(tmp_path / "real/nvcc", "")
    (tmp_path / "real/nvcc.profile").write_text("")
    assert tried_paths(str(real), {TRIED_VARIABLE: "/a"}) == "/a"
    script = program(tmp_path / "nvcc", "")
    assert tried_paths(str(script), {TRIED_VARIABLE: "/a"}) == f"/a:{script}"
