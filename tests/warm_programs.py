"""Programs in Python, forked from a process that has imported them.

pip, twine, auditwheel and archsplit take 0.2 to 0.5 CPU seconds for their imports, at each start.
They are real, and run in a process of their own; only its first half second is left out. Tests of
that start itself, of signals and of what is imported start a new interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import resource
import runpy
import site
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass
from functools import cache
from importlib import import_module, reload
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch

import pip

from archsplit.errors import ToolFailedError
from archsplit.system.process import CompletedProcess, SubprocessRunner
from known_tools import FOLDERS, remember_tools

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from archsplit.system.process import Command

_TOOLS = {
    "archsplit.index.twine_child": ("archsplit.index.twine_child",),
    "auditwheel": ("auditwheel.main",),
    "pip": tuple(
        f"pip._internal.{module}"
        for module in ("cli.main", "commands.check", "commands.download", "commands.install")
    ),
}
"""Modules that archsplit runs by ``python -m``, and what they import."""
_OWN = (
    *("archsplit.cli.main", "archsplit.cli.nvcc", "archsplit.compiler.wrapper"),
    *("archsplit.build.pipeline", "archsplit.inspect.inspect", "archsplit.split.split"),
)
_FORKS = multiprocessing.get_context("forkserver")
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
_PYTHON, _ENVIRONMENT = sys.executable, dict(os.environ)
_UNIMPORTANT = {"PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONPATH", "PYTHONUNBUFFERED"}
_STARTS = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Start of a program: ``module`` as ``__main__``, or ``module:function``."""

    program: str
    words: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    mask: int
    tools: tuple[Path, ...]
    limits: tuple[tuple[int, tuple[int, int]], ...]


def run_warm(
    program: str,
    words: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``module`` as ``__main__``, or ``module:function``; return what it printed.

    Raises:
        subprocess.TimeoutExpired: it was killed after that many seconds.
    """
    start = _Start(
        program=program,
        words=tuple(words),
        folder=str(cwd),
        environment=dict(env),
        mask=_file_mask(),
        tools=tuple(FOLDERS) if ":" in program else (),
        limits=tuple((each, resource.getrlimit(each)) for each in _LIMITS),
    )
    with TemporaryDirectory() as folder:
        printed = [Path(folder) / name for name in ("stdout", "stderr")]
        child = _FORKS.Process(target=_run, args=(start, [str(path) for path in printed]))
        with _STARTS:
            modules = _OWN if ":" in program else _TOOLS[program]
            connect = _server(modules).connect_to_new_process
            with patch.object(forkserver, "connect_to_new_process", connect):
                child.start()
        try:
            child.join(timeout)
            if child.exitcode is None:
                raise subprocess.TimeoutExpired([program, *words], timeout or 0.0)
        finally:
            # Not Process.kill(), which leaves what the program has started.
            if child.exitcode is None and child.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, 9)
                child.kill()
                child.join()
        code = child.exitcode
        stdout, stderr = (path.read_bytes() if path.exists() else b"" for path in printed)
        child.close()
    return subprocess.CompletedProcess([program, *words], code or 0, stdout, stderr)


def run_archsplit_nvcc(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Run ``archsplit-nvcc``, which may become nvcc."""
    # As long as an interpreter starts: a file that changes while it is compiled is never known.
    time.sleep(0.05)
    return run_warm("archsplit.cli.nvcc:launcher", words, cwd=cwd, env=env)


def run_archsplit_apart(
    *words: str | Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``archsplit`` in a process of its own; return what it printed."""
    program, cwd = "archsplit.cli.main:entry_point", Path.cwd()
    return decoded(run_warm(program, list(map(str, words)), cwd=cwd, env=env or os.environ))


def run_pip(
    words: Sequence[str], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the pip of the tests' own Python."""
    return decoded(run_warm("pip", words, cwd=Path.cwd(), env=env or os.environ))


def decoded(done: subprocess.CompletedProcess[bytes]) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


@cache
def _server(modules: tuple[str, ...]) -> forkserver.ForkServer:
    """Start a process that has imported a program's modules.

    Not all: twine imports another ``importlib.metadata``, which takes the place of Python's.
    """
    server = forkserver.ForkServer()
    server.set_forkserver_preload(["warm_programs", *modules])
    with patch.dict(os.environ, PYTHONHASHSEED="0"):  # as archsplit has it for what it starts
        server.ensure_running()
    return server


def _file_mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _run(start: _Start, printed: Sequence[str]) -> None:
    # What the server has imported is not looked at, and so its memory isn't copied.
    gc.freeze()
    os.setsid()
    for number, path in enumerate([os.devnull, *printed]):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        file = os.open(path, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (this process ends with them)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    os.umask(start.mask)
    for tools in start.tools:
        remember_tools(tools)
    for each, limit in start.limits:
        resource.setrlimit(each, limit)
    if start.program == "pip" and start.words[0] == "--python":
        _enter_environment(Path(start.words[1]))
    folders = start.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in folders if folder and folder not in sys.path]
    module, _, function = start.program.partition(":")
    sys.argv = ["-c" if function else "-m", *start.words]
    if function:
        sys.exit(getattr(import_module(module), function)())
    sys.modules.pop(module if module == "archsplit.index.twine_child" else f"{module}.__main__", 0)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _enter_environment(place: Path) -> None:
    """Be the interpreter by which ``pip --python`` starts itself again, for 0.3 CPU seconds.

    Only for an environment of this Python; pip sees to others.
    """
    root = place if place.is_dir() else place.parents[1]
    python, settings = root / "bin" / "python", root / "pyvenv.cfg"
    if not (python.exists() and python.samefile(sys.executable) and settings.exists()):
        return
    if "packages = true" in settings.read_text():
        return
    os.environ["_PIP_RUNNING_IN_SUBPROCESS"] = "1"
    sys.executable, sys.prefix, sys.exec_prefix = str(python), str(root), str(root)
    library = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    own = [path for path in sys.path if path.startswith(library) or path.endswith(".zip")]
    sys.path[:] = [path for path in own if "-packages" not in path]
    reload(sysconfig)
    site.PREFIXES[:] = [str(root)]
    site.addsitepackages(set())


def run_where_warm(self: SubprocessRunner, command: Command) -> CompletedProcess:
    """Run a command as `SubprocessRunner` does, but known modules in a forked process."""
    if not _is_warm(command):
        return _run_new(self, command)
    where = () if command.argv[0] == _PYTHON else ("--python", command.argv[0])
    began = time.monotonic()
    try:
        done = run_warm(
            command.argv[2],
            (*where, *command.argv[3:]),
            cwd=command.cwd,
            env=command.env,
            timeout=command.timeout,
        )
    except subprocess.TimeoutExpired:
        text = f"timed out after {command.timeout:g} s, killed: {command.text()}"
        raise ToolFailedError(text) from None
    return CompletedProcess(
        returncode=done.returncode,
        stdout=done.stdout.decode(errors=command.undecodable),
        stderr=done.stderr.decode(errors=command.undecodable),
        seconds=time.monotonic() - began,
    )


_run_new = SubprocessRunner.run


def _is_warm(command: Command) -> bool:
    """Return True if a new interpreter would find the same modules as this one."""
    is_module = command.argv[1:2] == ("-m",) and command.argv[2] in _TOOLS
    if not is_module or (command.argv[0] != _PYTHON and not _has_own_pip(command)):
        return False
    here, there = map(_settings_of_python, (_ENVIRONMENT, command.env))
    folders = filter(None, command.env.get("PYTHONPATH", "").split(os.pathsep))
    return here == there and {*folders} <= {*sys.path} and command.cwd.is_dir()


def _has_own_pip(command: Command) -> bool:
    """Return True for pip in an environment that has it from the tests' own, by a link."""
    packages = Path(command.argv[0]).parents[1].glob("lib/python*/site-packages/pip.pth")
    links = [Path(lines.read_text(), "pip") for lines in packages]
    return command.argv[2] == "pip" and any(link.samefile(pip.__path__[0]) for link in links)


def _settings_of_python(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in environment.items()
        if name.startswith("PYTHON") and name not in _UNIMPORTANT
    }
