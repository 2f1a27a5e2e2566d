"""A folder with sources for tests of the cache, and compilations of them in this process."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from archsplit.cache.config import resolve_settings
from archsplit.compiler.direct_hit import (
    find_record,
    invocation_keys,
    record_bases,
    restore_hit,
)
from archsplit.compiler.invocation import Invocation, PooledRunner, ReportFiles, WrapperContext
from archsplit.compiler.wrapper import run_wrapper
from archsplit.errors import ArchsplitError
from archsplit.nvcc.cmdline import CommandLine, FallBackToNvccError
from archsplit.scheduler.pool_choice import find_pool
from archsplit.system.env import cache_dir
from archsplit.system.process import SubprocessRunner
from archsplit.system.terminal import SilentProgress

TWO = (
    *("-gencode", "arch=compute_80,code=sm_80"),
    *("-gencode", "arch=compute_90,code=sm_90"),
)
SOURCE = """\
#include "h.h"
static __global__ void kernel(int *p) { p[threadIdx.x] = VALUE; }
void run(int *p) { kernel<<<1, 32>>>(p); }
"""
KNOWN = ("cache hit (local)",)


def settle() -> None:
    """Let a moment pass: a file that changes while it is compiled is never known."""
    time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Project:
    """A folder with sources, a store, and an environment."""

    folder: Path
    store: Path
    nvcc: Path
    extra: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        settle()

    def compile(
        self, *arguments: str, cache: str = "on", output: str = "k.o", make: str = "-c k.cu"
    ) -> tuple[str, ...]:
        """Return the output of ``--explain`` for a compilation, and the tools' output."""
        environment = {
            **os.environ,
            # Cores aren't shared with whatever else runs on the machine.
            "XDG_RUNTIME_DIR": str(self.store.parent),
            "ARCHSPLIT_CACHE": cache,
            "ARCHSPLIT_CACHE_DIR": str(self.store),
            "ARCHSPLIT_CACHE_MIN_SECONDS": "0",
            **self.extra,
        }
        order = Invocation(
            nvcc=self.nvcc,
            command=CommandLine((*make.split(), "-o", output, *arguments)),
            cwd=self.folder,
            environment=environment,
            reproducible=True,
            reports=ReportFiles(),
        )
        direct = DirectHit.of(order)
        said = carried_out(order._replace(direct_key=direct.key, shared_key=direct.shared_key))
        direct.check(said)
        return tuple(line.removeprefix("archsplit: ") for line in said.splitlines())

    def is_fresh(self, *arguments: str, make: str = "-c k.cu") -> bool:
        """Return True if the object is equal to the object of a compilation without the cache."""
        if (os.environ | self.extra).get("ARCHSPLIT_CACHE_BASE_DIR"):
            # Without the cache, objects have other names of files.
            empty = replace(self, store=self.store.with_name("empty"))
            shutil.rmtree(empty.store, ignore_errors=True)
            empty.compile(*arguments, output="fresh.o", make=make)
        else:
            self.compile(*arguments, cache="off", output="fresh.o", make=make)
        return (self.folder / "k.o").read_bytes() == (self.folder / "fresh.o").read_bytes()


@dataclass(frozen=True, kw_only=True)
class DirectHit:
    """A hit by the record of an earlier call, to be compared with what the whole way finds.

    Attributes:
        key: of the record.
        shared_key: of the record for all checkouts; "" for none.
        found: whether there was one.
        made: contents of the files that it wrote, which aren't there any more.
    """

    key: str
    shared_key: str
    found: bool
    made: dict[Path, bytes | None]

    @classmethod
    def of(cls, order: Invocation) -> DirectHit:
        bases = record_bases(str(order.cwd), order.environment)
        key, shared = invocation_keys(
            order.command.argv,
            cwd=str(order.cwd),
            environment=order.environment,
            nvcc=str(order.nvcc),
            version="1",
            bases=bases,
        )
        store = cache_dir(order.environment)
        _, record = find_record(store, key, order.environment, shared_key=shared, bases=bases or ())
        places = [] if record is None else [Path(path) for path in record["outputs"][::4]]
        before = {path: _content(path) for path in places}
        restored = restore_hit(key, order.environment, shared_key=shared, bases=bases)
        made = {path: _content(path) for path in places}
        for path, content in before.items():
            if content is not None:
                path.write_bytes(content)
            else:
                path.unlink(missing_ok=True)
        return cls(key=key, shared_key=shared, found=restored is not None, made=made)

    def check(self, said: str) -> None:
        """Never a hit where the whole way finds none, and never other files."""
        if self.found:
            assert KNOWN[0] in said, said
            assert {path: _content(path) for path in self.made} == self.made


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def carried_out(order: Invocation) -> str:
    """Run an invocation that succeeds as ``archsplit-nvcc`` does; return its output."""
    said = io.BytesIO()

    def warn(text: str) -> None:
        said.write(f"archsplit: {text}\n".encode())

    settings = resolve_settings(order.environment)
    runner = SubprocessRunner()
    found = find_pool(order.environment, jobs=None, memory=None)
    with contextlib.closing(found.pool):
        around = WrapperContext(
            runner=runner,
            graph_runner=PooledRunner(
                pool=found.pool,
                runner=runner,
                progress=SilentProgress(),
                history=settings.folder.parent / "history",
            ),
            stdout=io.BytesIO(),
            stderr=said,
            warn=warn,
            cache=None if settings.mode == "off" else settings,
            explain_cache=True,
        )
        try:
            code = run_wrapper(order, around)
        except FallBackToNvccError:
            code = by_nvcc(order, said)
        except ArchsplitError as error:
            raise AssertionError(str(error)) from error
    text = said.getvalue().decode()
    assert code == 0, text
    return text


def by_nvcc(order: Invocation, said: io.BytesIO) -> int:
    argv = [str(order.nvcc), *order.command.argv]
    done = subprocess.run(
        argv, cwd=order.cwd, env=order.environment, capture_output=True, check=False
    )
    said.write(done.stderr)
    return done.returncode


def ran(lines: tuple[str, ...]) -> list[str]:
    """The steps that had to run."""
    return sorted(line.partition(":")[0] for line in lines if ": cache miss" in line)


def copied(project: Project, folder: Path) -> Project:
    """A copy, with its store, that can be changed."""
    shutil.copytree(project.store, folder / "store")
    shutil.copytree(project.folder, folder / "one")
    settle()
    return Project(
        folder=folder / "one", store=folder / "store", nvcc=project.nvcc, extra=project.extra
    )


def toolkit_of_links(nvcc: Path, root: Path) -> Path:
    """The nvcc of a toolkit like another one, of which the parts that tests change are copies."""
    original = nvcc.parent.parent
    own = ("bin/nvcc", "bin/nvcc.profile", "nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc")
    for name in own:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(original / name, root / name)
    for path in (*original.iterdir(), *(original / "bin").iterdir()):
        link = root / path.relative_to(original)
        if not link.exists():
            link.symlink_to(path)
    settle()
    return root / "bin/nvcc"
