from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from archsplit.errors import BinaryFormatError, InputError, ToolFailedError, WheelError
from archsplit.release.context import Effects
from archsplit.release.verify import tag_cache
from archsplit.system.process import Command, CompletedProcess, SubprocessRunner
from archsplit.system.terminal import SilentProgress
from archsplit.wheels.platform_tags import (
    DRIVER_LIBRARIES,
    PlatformTagCache,
    PlatformTags,
    find_platform_tags,
    parse_auditwheel,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

MACHINE = platform.machine()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles a library with the host's gcc: no start files, and only the symbols it is given."""
    folder = tmp_path_factory.mktemp("libraries")

    def compile_library(name: str, source: str, *flags: str) -> Path:
        code = folder / f"{name}.c"
        code.write_text(source)
        argv = ["gcc", "-shared", "-fPIC", "-nostartfiles", f"-Wl,-soname,{name}", str(code)]
        subprocess.run([*argv, "-o", str(folder / name), *flags], check=True)
        return folder / name

    return compile_library


def tags(
    library: Path, *, provided: Collection[str] = DRIVER_LIBRARIES, python: str = sys.executable
) -> PlatformTags:
    return find_platform_tags(
        {f"vecsort_plugins/{library.name}": library},
        runner=SubprocessRunner(),
        environment=os.environ,
        provided=provided,
        python=python,
    )


OLD = "#include <string.h>\nsize_t f(const char *s) { return strlen(s); }\n"
NEEDS = "int g(void); int f(void) { return g(); }\n"
NEEDED = "int g(void) { return 1; }\n"


def test_library_with_old_symbols_is_tagged_manylinux2014(compiled: Callable[..., Path]) -> None:
    found = tags(compiled("libold.so", OLD))
    assert found == PlatformTags(architecture=MACHINE, glibc=(2, 17))
    assert found.names == (f"manylinux2014_{MACHINE}", f"manylinux_2_17_{MACHINE}")


def test_newer_symbol_raises_the_platform_tag(compiled: Callable[..., Path]) -> None:
    """getrandom came with glibc 2.25; the next policy is for 2.26."""
    source = "#include <sys/random.h>\nlong f(void *b) { return getrandom(b, 1, 0); }\n"
    found = tags(compiled("libnew.so", source))
    assert found.names == (f"manylinux_2_26_{MACHINE}",)


def test_promised_glibc_is_tagged_and_newer_symbols_are_refused(
    compiled: Callable[..., Path],
) -> None:
    """Libraries that need less get the promised tag; others are an error with their symbols."""
    source = "#include <sys/random.h>\nlong f(void *b) { return getrandom(b, 1, 0); }\n"
    new = {"libnew.so": compiled("libnew.so", source)}
    cache = PlatformTagCache(runner=SubprocessRunner(), environment=os.environ)
    assert cache.promised(new, (), "2_28") == (f"manylinux_2_28_{MACHINE}",)
    assert (
        cache.promised(new, (), "2_26") == cache.promised(new, (), "") == cache.platforms(new, ())
    )
    with pytest.raises(WheelError) as caught:
        cache.promised(new, (), "2_17")
    assert str(caught.value) == (
        "libnew.so: needs getrandom (GLIBC_2.25), but the recipe promises manylinux_2_17\n"
        'hint: compile in an image of manylinux_2_17, or write manylinux = "2_26" in [targets]'
    )


def test_platform_tags_are_parsed_from_file_names() -> None:
    new = PlatformTags(architecture="x86_64", glibc=(2, 28))
    assert PlatformTags.parse(new.names) == new
    assert PlatformTags.parse(("manylinux2014_x86_64", "manylinux_2_17_x86_64")) is not None
    # A part of the equal tags, tags of two glibcs, and none.
    for names in (("manylinux_2_17_x86_64",), (*new.names, "manylinux_2_31_x86_64"), ("any",)):
        assert PlatformTags.parse(names) is None
    old = PlatformTags(architecture="x86_64", glibc=(2, 17))
    assert old.keep(new)
    assert not new.keep(old)
    assert not old.keep(PlatformTags(architecture="aarch64", glibc=(2, 28)))


def test_needed_library_outside_the_policy_is_named(compiled: Callable[..., Path]) -> None:
    needed = compiled("libfoo.so.1", NEEDED)
    library = compiled("libneeds.so", NEEDS, str(needed), "-Wl,-rpath," + str(needed.parent))
    with pytest.raises(WheelError) as caught:
        tags(library)
    message = str(caught.value)
    assert message.startswith("vecsort_plugins/libneeds.so: no platform tag fits; ")
    assert "it needs libfoo.so.1, which not every Linux has" in message
    assert "\nhint: link" in message
    assert tags(library, provided=["libfoo.so.*"]).glibc == (2, 17)


def test_driver_is_an_allowed_dependency(compiled: Callable[..., Path]) -> None:
    library = compiled("libcalls.so", NEEDS, str(compiled("libcuda.so.1", NEEDED)))
    assert tags(library).glibc == (2, 17)
    with pytest.raises(WheelError, match=re.escape("it needs libcuda.so.1")):
        tags(library, provided=())


def test_libraries_of_one_wheel_find_each_other(compiled: Callable[..., Path]) -> None:
    needed = compiled("libmine.so", NEEDED)
    library = compiled("libmain.so", NEEDS, str(needed), "-Wl,-rpath,$ORIGIN")
    found = find_platform_tags(
        {"a/libmain.so": library, "a/libmine.so": needed},
        runner=SubprocessRunner(),
        environment={**os.environ, "LD_LIBRARY_PATH": "/nowhere"},
    )
    assert found.glibc == (2, 17)


def other_machine(library: Path, machine: int) -> Path:
    other = library.with_suffix(f".{machine}.so")
    content = bytearray(library.read_bytes())
    content[18:20] = machine.to_bytes(2, "little")
    other.write_bytes(content)
    return other


def test_libraries_of_other_machines_are_refused(compiled: Callable[..., Path]) -> None:
    library = compiled("libold.so", OLD)
    cuda, riscv = other_machine(library, 190), other_machine(library, 243)
    with pytest.raises(WheelError, match=r"libraries of one machine .* is for machine 243"):
        tags(riscv)
    with pytest.raises(WheelError, match=r"libraries of one machine .* is for machine 190"):
        find_platform_tags(
            {"a.so": library, "b.so": cuda}, runner=SubprocessRunner(), environment=os.environ
        )
    with pytest.raises(WheelError, match="it has none"):
        find_platform_tags({}, runner=SubprocessRunner(), environment=os.environ)


def test_non_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"not ELF" * 20)
    with pytest.raises(BinaryFormatError):
        tags(tmp_path / "lib.so")
    with pytest.raises(InputError):
        tags(tmp_path / "gone.so")


def test_interpreter_without_auditwheel_is_a_tool_error(
    compiled: Callable[..., Path], tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    with pytest.raises(ToolFailedError, match="No module named auditwheel"):
        tags(compiled("libold.so", OLD), python=str(tmp_path / "bare" / "bin" / "python"))


class FakeAuditwheel:
    """A runner that gives one answer and remembers the command."""

    def __init__(self, *, returncode: int = 0, stdout: str = "", stderr: str = "") -> None:
        self.answer = CompletedProcess(
            returncode=returncode, stdout=stdout, stderr=stderr, seconds=0.0
        )
        self.commands: list[Command] = []

    def run(self, command: Command) -> CompletedProcess:
        self.commands.append(command)
        return self.answer

    def cancel(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"returncode": 2, "stderr": "usage: auditwheel"}, "usage: auditwheel"),
        (
            {"stderr": "WARNING:auditwheel.wheel_abi:ignoring: b.so with musl libc"},
            "with musl libc",
        ),
        ({"returncode": 1, "stderr": "Traceback"}, "exit status 1: (?s:.*)Traceback"),
        ({"stdout": "{}"}, "is not of schema version 1"),
        ({"stdout": '{"version": 2}'}, "is not of schema version 1"),
    ],
)
def test_failed_analysis_is_a_tool_error(
    compiled: Callable[..., Path], answer: Mapping[str, Any], message: str
) -> None:
    runner = FakeAuditwheel(**answer)
    with pytest.raises(ToolFailedError, match=message):
        find_platform_tags(
            {"a.so": compiled("libold.so", OLD)},
            runner=runner,
            environment={"LD_LIBRARY_PATH": "/a", "AUDITWHEEL_LD_LIBRARY_PATH": "/b", "C": "d"},
        )
    (command,) = runner.commands
    assert command.env == {"C": "d", "TMPDIR": str(command.cwd)}
    assert not command.cwd.exists()


def verdict(**changes: object) -> str:
    return json.dumps(
        {
            "version": 1,
            "wheel": "probe.whl",
            "pure": False,
            "overall_tag": "linux_x86_64",
            "sym_tag": "manylinux_2_17_x86_64",
            "pyfpe": False,
            "ucs2": False,
            "unsupported_isa": False,
            "versioned_symbols": {"libc.so.6": ["GLIBC_2.99", "GLIBC_2.5"]},
            "external_libs": {},
            "policy_upgrades": {},
            **changes,
        }
    )


def upgrades(*versions: str, **obstacles: object) -> dict[str, object]:
    return {f"manylinux_2_{version}_x86_64": obstacles for version in versions}


FOO = {"libs_to_eliminate": ["libfoo.so.1"]}


@pytest.mark.parametrize(
    ("changes", "provided", "glibc"),
    [
        ({"overall_tag": "manylinux_2_34_x86_64"}, (), (2, 34)),
        ({"overall_tag": "manylinux_2_5_x86_64", "sym_tag": "manylinux_2_5_x86_64"}, (), (2, 17)),
        ({"policy_upgrades": upgrades("5", "12", "17", "34", **FOO)}, ("libfoo.so.1",), (2, 17)),
        (
            {"policy_upgrades": upgrades("17", "34", **FOO), "sym_tag": "manylinux_2_34_x86_64"},
            ("libfoo*",),
            (2, 34),
        ),
        (
            {
                "overall_tag": "manylinux_2_34_x86_64",
                "policy_upgrades": upgrades("17", **FOO)
                | upgrades("28", blacklisted_symbols={"libz.so.1": ["f"]}),
            },
            (),
            (2, 34),
        ),
        (
            {
                "overall_tag": "manylinux_2_34_x86_64",
                "policy_upgrades": upgrades("17", "28", **FOO),
            },
            ("libfoo.so.1",),
            (2, 17),
        ),
    ],
)
def test_oldest_glibc_satisfying_the_verdict_is_promised(
    changes: Mapping[str, object], provided: tuple[str, ...], glibc: tuple[int, int]
) -> None:
    found = parse_auditwheel(verdict(**changes), subject="a.so").tags(provided, subject="a.so")
    assert found == PlatformTags(architecture="x86_64", glibc=glibc)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sym_tag": "linux_x86_64"},
            "no policy has all symbols that it needs from libc.so.6 (GLIBC_2.5, GLIBC_2.99)",
        ),
        ({"unsupported_isa": True}, "needing more than its architecture's oldest instructions"),
        ({"pyfpe": True}, "extension module of Python 2"),
        ({"ucs2": True}, "extension module of Python 2"),
        ({"sym_tag": "musllinux_1_2_x86_64"}, "it is linked against musl, and CUDA needs glibc"),
        ({"sym_tag": "musllinux_1_2_x86_64", "overall_tag": "musllinux_1_2_x86_64"}, "musl"),
        (
            {"policy_upgrades": upgrades("5", libs_to_eliminate=["libc.musl-x86_64.so.1"])},
            "it is linked against musl (libc.musl-x86_64.so.1)",
        ),
        (
            {"policy_upgrades": upgrades("41", blacklisted_symbols={"libz.so.1": ["f", "g"]})},
            "it uses f, g of libz.so.1, which no policy allows",
        ),
        (
            {"policy_upgrades": upgrades("5", **FOO) | upgrades("41", libs_to_eliminate=["b"])},
            "fits; it needs b, which not every Linux has",
        ),
        ({}, "no platform tag fits; linux_x86_64"),
    ],
)
def test_why_no_tag_fits(changes: Mapping[str, object], message: str) -> None:
    with pytest.raises(WheelError, match=re.escape(message)):
        parse_auditwheel(verdict(**changes), subject="a.so").tags((), subject="a.so")


def test_verdict_without_an_elf_file_is_refused() -> None:
    answer = '{"version": 1, "wheel": "a.whl", "error": "no ELF file"}'
    with pytest.raises(WheelError, match=r"a\.so: no ELF file"):
        parse_auditwheel(answer, subject="a.so")


@pytest.mark.parametrize(
    "text", ["", "[]", verdict(version=2), verdict(pure=True), verdict(pyfpe=0), verdict(more=1)]
)
def test_output_of_another_schema_is_refused(text: str) -> None:
    with pytest.raises(ToolFailedError, match="not of schema version 1"):
        parse_auditwheel(text, subject="a.so")


class Counted(SubprocessRunner):
    """Counts what it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.started = 0

    def run(self, command: Command) -> CompletedProcess:
        self.started += 1
        return super().run(command)


def test_the_same_bytes_are_judged_once(compiled: Callable[..., Path]) -> None:
    runner = Counted()
    judge = PlatformTagCache(runner=runner, environment=os.environ)
    library = compiled("libold.so", OLD)
    first = judge.platforms({"sm_80-libold.so": library}, ())
    assert judge.platforms({"p/cuda/sm_80/libold.so": library}, ()) == first
    assert runner.started == 1
    both = {"a/libold.so": library, "a/libother.so": compiled("libother.so", NEEDED)}
    assert judge.platforms(both, ()) == judge.platforms(dict(reversed(both.items())), ())
    assert runner.started == 2
    judge.platforms({"libold.so": library}, ("libx.so.1",))
    assert runner.started == 3


def test_verifications_of_a_process_share_results(
    compiled: Callable[..., Path], tmp_path: Path
) -> None:
    runner = Counted()
    effects = Effects(progress=SilentProgress(), environment=os.environ, runner=runner)
    library = {"libold.so": compiled("libold.so", OLD)}
    tags = [tag_cache(effects, tmp_path).platforms(library, ()) for _ in range(2)]
    assert tags[0] == tags[1]
    assert runner.started == 1
    other = replace(effects, python_path=str(tmp_path / "missing"))
    # There may be another auditwheel.
    assert tag_cache(other, tmp_path).platforms(library, ()) == tags[0]
    assert runner.started == 2
