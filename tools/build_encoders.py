"""Compile the LZ4 encoders that archsplit's own wheel has as data.

``python tools/build_encoders.py`` compiles ``devicecode/lz4/lz4_encoders.c`` for x86-64 and
aarch64, with the same bytes on every computer, and writes ``SHA256SUMS``; ``--check`` compares the
bytes instead. As for the loader, this needs the extra ``loader``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from build_loader import GLIBC, zig_environment, zig_program

from archsplit.devicecode.encoders import ENCODER_DIGESTS, ENCODER_LIBRARY, compiled_encoders
from archsplit.errors import ArchsplitError
from archsplit.release.loader import ZIG
from archsplit.system.fs import output_errors, sha256, temporary_dir
from archsplit.system.process import Command, SubprocessRunner, run_checked

if TYPE_CHECKING:
    from collections.abc import Sequence

MACHINES = ("x86_64", "aarch64")
SOURCE = "lz4_encoders.c"
_OPTIONS = (
    *("-std=c11", "-O2", "-g0", "-Wall", "-Wextra", "-Wpedantic", "-Werror"),
    *("-fPIC", "-fvisibility=hidden", "-fstack-protector-strong", "-shared", "-s", "-rtlib=none"),
    "-Wl,-z,relro,-z,now,-z,defs,--build-id=sha1",
)


def build_encoders(folder: Path) -> None:
    """Compile the encoders for all machines below a folder that has their source.

    Raises:
        ToolNotFoundError: the ziglang wheel is not installed.
        ToolFailedError: the compiler failed.
        OutputError: the folder can't be written.
    """
    with temporary_dir() as private:
        (private / SOURCE).write_bytes((folder / SOURCE).read_bytes())
        for machine in MACHINES:
            _compile(private, machine)
            with output_errors(folder / machine):
                (folder / machine).mkdir(exist_ok=True)
                content = (private / ENCODER_LIBRARY).read_bytes()
                (folder / machine / ENCODER_LIBRARY).write_bytes(content)
    with output_errors(folder / ENCODER_DIGESTS):
        (folder / ENCODER_DIGESTS).write_text(_digests(folder))


def _compile(private: Path, machine: str) -> None:
    argv = (str(zig_program()), "cc", "-target", f"{machine}-linux-gnu.{GLIBC}", *_OPTIONS)
    command = Command(
        # A relative path, so that no path of this machine gets into the library.
        argv=(*argv, f"-Wl,-soname,{ENCODER_LIBRARY}", SOURCE, "-o", ENCODER_LIBRARY),
        cwd=private,
        env=zig_environment(private),
        timeout=600,
    )
    run_checked(SubprocessRunner(), command, what="compiling the LZ4 encoders")


def _digests(folder: Path) -> str:
    names = (*sorted(f"{machine}/{ENCODER_LIBRARY}" for machine in MACHINES), SOURCE)
    head = f"# ziglang {ZIG}: zig cc -target MACHINE-linux-gnu.{GLIBC} {' '.join(_OPTIONS)}\n"
    return head + "".join(f"{sha256(folder / name)}  {name}\n" for name in names)


def stale_encoders() -> bool:
    """Return True if the compiled encoders are not the ones of their source; compiles nothing."""
    folder = Path(str(compiled_encoders()))
    return (folder / ENCODER_DIGESTS).read_text() != _digests(folder)


def run_encoders_build(arguments: Sequence[str] | None = None) -> int:
    """Write the compiled encoders, or compare them with what their source makes."""
    parser = argparse.ArgumentParser(prog="python tools/build_encoders.py")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if a library differs"
    )
    is_check = parser.parse_args(arguments).check
    folder = Path(str(compiled_encoders()))
    try:
        if not is_check:
            build_encoders(folder)
            return 0
        with temporary_dir() as again:
            (again / SOURCE).write_bytes((folder / SOURCE).read_bytes())
            build_encoders(again)
            made = (again / ENCODER_DIGESTS).read_text()
    except ArchsplitError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    if made != (folder / ENCODER_DIGESTS).read_text() or stale_encoders():
        sys.stderr.write("the LZ4 encoders are not what their source makes; run `nox -s loader`\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(run_encoders_build())
