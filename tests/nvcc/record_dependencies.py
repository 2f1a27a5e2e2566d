"""Record the depfiles of nvcc (-M, -MD and their kin) for the tests of archsplit's own.

    python tests/nvcc/record_dependencies.py --nvcc PATH

Everything is really run. The files of the host (``/usr/include/stdc-predef.h``) are in it.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

from nvcc_dependencies import CASES, SOURCES, Written, run_text
from nvcc_situations import TRANSCRIPTS, Situation

_MARKER = re.compile(r'^# \d+ ".*"[ 0-9]*\n', re.MULTILINE)
_PREPROCESSED = re.compile(r'^#\$ (?!.*\.cudafe1\.cpp").* -E .*-o "([^"]+)" *$', re.MULTILINE)
_RESULTS = (".ii", ".a", ".ptx", ".cubin", ".fatbin", ".so.1")


def main() -> None:
    """Run all cases and write their outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", type=Path, required=True, help="the compiler to run")
    nvcc = parser.parse_args().nvcc.resolve()
    out = TRANSCRIPTS / "dependencies"
    out.mkdir(parents=True, exist_ok=True)
    for stale in out.glob("*.txt"):
        stale.unlink()
    for case in CASES:
        with tempfile.TemporaryDirectory() as name:
            run = _run(nvcc, case, Path(name).resolve())
        (out / f"{case.name}.txt").write_text(run_text(case, run))


def _run(nvcc: Path, case: Situation, root: Path) -> Written:
    cwd, folder = root / "cwd", root / "private"
    folder.mkdir()
    for name, text in SOURCES.items():
        (cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (cwd / name).write_text(text)
    words = [str(nvcc), "--keep", "--keep-dir", str(folder), *shlex.split(case.line)]
    plan = _run_nvcc([*words, "--dryrun"], cwd).stderr
    before = set(cwd.rglob("*"))
    done = _run_nvcc(words, cwd)
    made = sorted(path for path in set(cwd.rglob("*")) - before if path.suffix != ".gch")
    return Written(
        returncode=done.returncode,
        markers={
            path.name: "".join(_MARKER.findall(path.read_text()))
            for path in map(Path, dict.fromkeys(_PREPROCESSED.findall(plan)))
            if path.exists()
        },
        files={
            str(path.relative_to(cwd)): path.read_text(errors="replace")
            for path in made
            if path.read_bytes()[:4] != b"\x7fELF" and not path.name.endswith(_RESULTS)
        },
        stdout=done.stdout,
    )


def _run_nvcc(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


if __name__ == "__main__":
    main()
