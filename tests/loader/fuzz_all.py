"""Fuzz all readers of the loader with libFuzzer, or AFL++, and count the executions.

As a program: ``python tests/loader/fuzz_all.py SECONDS [PROCESSES]``, with clang. With ``--afl``
the targets are compiled by afl-clang-fast, and run by afl-fuzz. ``--build FOLDER`` only compiles,
and ``--built FOLDER`` only runs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
LOADER = HERE.parents[1] / "plugin_loader"
TARGETS = ("fuzz_descriptor", "fuzz_pack", "fuzz_settings")
OWN_COPIES = ("procfs.c", "tegra.c")
"""Sources that fuzz_settings.c includes, with files of its own."""
SETTINGS = (
    b"\x000,GPU-1000,MIG-4",
    b"\x01Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-1\nDevice Minor: \t 0\n",
    b"\x02NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Jan\n",
    b"\x03nvidia,p3737-0000\x00nvidia,tegra234\x00",
)


def build(folder: Path, *, afl: bool) -> None:
    """Compile all targets with AddressSanitizer and UndefinedBehaviorSanitizer."""
    compiler = "afl-clang-fast" if afl else "clang"
    flags = ["-g", "-O2", "-DLIBFUZZER", "-fno-sanitize-recover=all", f"-I{LOADER / 'include'}"]
    # The programs run on other machines too.
    flags += ["-static-libstdc++", "-static-libgcc"]
    flags += ["-fsanitize=fuzzer" if afl else "-fsanitize=fuzzer,address,undefined"]
    for name in TARGETS:
        copies = OWN_COPIES if name == "fuzz_settings" else ()
        sources = [each for each in (LOADER / "src").glob("*.c") if each.name not in copies]
        command = [compiler, *flags, "-o", folder / name, HERE / f"{name}.c", *sorted(sources)]
        # fuzz_settings.c includes two readers, with files of its own.
        wrapped = () if copies else ("os_open", "os_close", "os_read")
        end = ["-ldl", "-lpthread", *(f"-Wl,--wrap={each}" for each in wrapped)]
        subprocess.run([*map(str, command), *end], check=True, stdout=subprocess.DEVNULL)
        seeds(name, folder / f"{name}.seeds")


def seeds(name: str, folder: Path) -> None:
    folder.mkdir()
    from loader_packs import Pack, images  # noqa: PLC0415 (a machine that only runs has no pytest)

    stub, places = "libarchsplit_0000000000000000.so", ((64, 128), (88, 144))
    packs = [
        Pack(
            containers=images(contained=held), places=places, stub=stub, is_table=held == "all"
        ).encode()
        for held in ("sm_90", "all")
    ]
    contents = {
        "fuzz_pack": packs,
        "fuzz_descriptor": [plugin(folder)],
        "fuzz_settings": list(SETTINGS),
    }
    for number, content in enumerate(contents[name]):
        (folder / str(number)).write_bytes(content[:65536])


def plugin(folder: Path) -> bytes:
    """A plugin as the tests have it, small."""
    from loader_stubs import SIZE, Stub  # noqa: PLC0415 (a machine that only runs has no pytest)

    path = folder.with_suffix(".so")
    small = ("-shared", "-fPIC", "-Os", "-s", "-Wl,-z,noseparate-code")
    subprocess.run(["gcc", *small, "-o", path, HERE / "stub_plugin.c"], check=True)
    return path.read_bytes().replace(b"\xa5" * SIZE, Stub().encode())


def fuzz(folder: Path, seconds: int, processes: int, *, afl: bool) -> int:
    """Run the targets side by side; return the exit status."""
    running = []
    for number, name in zip(range(processes), itertools.cycle(TARGETS)):
        work = folder / f"{name}.{number}"
        work.mkdir()
        if afl:
            command = ["afl-fuzz", "-i", folder / f"{name}.seeds", "-o", work, "-V", str(seconds)]
            command += ["--", folder / name]
        else:
            shutil.copytree(folder / f"{name}.seeds", work / "corpus")
            command = [folder / name, "corpus", f"-max_total_time={seconds}", f"-seed={number + 1}"]
            command += ["-print_final_stats=1", "-verbosity=0", "-max_len=65536", "-rss_limit_mb=0"]
        child = os.environ | {"AFL_NO_UI": "1", "AFL_SKIP_CPUFREQ": "1", "AFL_NO_AFFINITY": "1"}
        child["AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES"] = "1"
        log = (work / "log").open("wb")
        process = subprocess.Popen(
            list(map(str, command)), cwd=work, env=child, stdout=log, stderr=subprocess.STDOUT
        )
        running.append((name, work, process))
    total, crashes = 0, 0
    for name, work, process in running:
        status = process.wait()
        if afl:
            text = "".join(path.read_text() for path in work.rglob("fuzzer_stats"))
            found = re.search(r"execs_done\s*: (\d+)", text)
            bad = len(list(work.rglob("crashes/id*"))) + len(list(work.rglob("hangs/id*")))
        else:
            text = (work / "log").read_text(errors="replace")
            found = re.search(r"number_of_executed_units: (\d+)", text)
            bad = len(list(work.glob("crash-*"))) + len(list(work.glob("timeout-*")))
        executions = int(found[1]) if found else 0
        total, crashes = total + executions, crashes + bad
        print(f"{name}: {executions:,} executions, {bad} crashes, status {status}")  # noqa: T201 (a program)
        if bad or not executions:
            print((work / "log").read_text(errors="replace")[-1500:])  # noqa: T201 (the same)
    print(f"together: {total:,} executions, {crashes} crashes")  # noqa: T201 (the same)
    return 1 if crashes or not total else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("seconds", type=int)
    parser.add_argument("processes", type=int, nargs="?", default=os.cpu_count())
    parser.add_argument("--afl", action="store_true", help="AFL++ in place of libFuzzer")
    parser.add_argument("--build", type=Path, help="compile into this folder, and run nothing")
    parser.add_argument("--built", type=Path, help="run what was compiled into this folder")
    arguments = parser.parse_args()
    if arguments.build:
        build(arguments.build, afl=arguments.afl)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "fuzz"
        if arguments.built:
            shutil.copytree(arguments.built, folder)
        else:
            folder.mkdir()
            build(folder, afl=arguments.afl)
        return fuzz(folder, arguments.seconds, arguments.processes, afl=arguments.afl)


if __name__ == "__main__":
    sys.exit(main())
