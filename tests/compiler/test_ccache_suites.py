"""ccache's own test suites for nvcc, run by ccache's own harness.

``CCACHE_SOURCES`` names a folder with ccache's sources; its ``test/run`` needs cuobjdump and
nvdisasm on the ``PATH``. Two things in copies of the suites for nvcc are changed. The targets are
8.0 and 8.6, because CUDA 13 has no 5.0. A ``-D`` that nothing uses is expected to be a miss there,
because the suites compile plain C++ with it, which archsplit caches as a whole only.

The suite ``basedir`` is for gcc, so nvcc gets the flags in its own spelling. `OTHER_RULES` has the
tests that it can't pass by design, and the changed lines are those in which a depfile or a message
names a file: archsplit writes the names that nvcc would write, not relative ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from source_roots import SOURCE_PATH

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

pytestmark = [pytest.mark.nvcc, pytest.mark.stress]
SUITES = ("nvcc", "nvcc_direct", "nvcc_ldir")
_UNUSED = "# Specified define, but unused"
_COUNTER = re.compile(r"(expect_stat (\w+)) (\d+)")
OTHER_RULES = {
    # A script that adds flags to gcc's. archsplit asks nvcc for its steps and has no type of a
    # compiler to set: a program that isn't nvcc is run without the cache.
    "Enabled CCACHE_BASEDIR in preprocessor mode": "its compiler is a script, not nvcc",
    # Names both checkouts at once. `auto` finds each checkout, and its build folder.
    "Several entries in CCACHE_BASEDIR": "base-dir is one folder",
    # Expects a hit for `-I$PWD//./subdir/../include` after `-I$PWD/include`. A build spells a
    # folder in one way, and with a link below, `..` doesn't lead where the text says.
    "Path normalization": "another spelling of a folder is another command line",
    # `build1/src` and `build2/src` are links to two folders. GCC leaves out a folder that it has
    # twice by a link, so what a link leads to can change which header is found.
    "Symlinked source dir inside build dir": "a folder that is a link is of one checkout",
    # The same source without -o, with `-o test.o`, with `-o $PWD/test.o`, and by an absolute name.
    "Object token path in dependency file": "with -o or without is another command line",
}
"""Tests that differ by design. In each, archsplit compiles where ccache has a hit."""

_ACTUAL_FOLDER = re.compile(r"\n    # Actual CWD \(e\.g.*?cache_miss 1\n", re.DOTALL)
"""A part of "Symlinked build dir inside source dir": another spelling, as above."""
_UPWARDS = "$CCACHE $REAL_NVCC -I$(pwd)/../"
_FOR_NVCC = (
    ("$CCACHE_COMPILE", "$CCACHE $REAL_NVCC"),
    ("-Wall -W ", "-Xcompiler -Wall,-W "),
    ('"MQ " "MT "', '"MT "'),
    ("additional_options=(MF)", "additional_options="),
    ("additional_options=(MQ MT)", "additional_options="),
    ("additional_options=(MF MQ MT)", "additional_options="),
    # nvcc has a space before the colon of a rule, and no option for coloured messages.
    ('test.o:*"', 'test.o*:*"'),
    ('foo.o:*"', 'foo.o*:*"'),
    ("if $COMPILER_TYPE_GCC && $COMPILER -fdiagnostics-color=always", "if false"),
    # All names are relative to the base, and not to the working folder: the root is not one.
    ("CCACHE_BASEDIR=/ $CCACHE $REAL_NVCC --version >/dev/null", ""),
    ("expect_stat no_input_file 1", ""),
    ("CCACHE_BASEDIR=$BASEDIR", "CCACHE_BASEDIR=`pwd`"),
    (f"CCACHE_BASEDIR=/ {_UPWARDS}", f"CCACHE_BASEDIR=$(dirname $PWD) {_UPWARDS}"),
    ("CCACHE_BASEDIR=/", "CCACHE_BASEDIR=`pwd`"),
    # Messages and rules of a hit name the files of this folder, as the compiler's own do.
    ("if grep `pwd` stderr.txt >/dev/null 2>&1; then", "if false; then"),
    ("if [[ $token == /* && $token != *: ]]; then", "if false; then"),
)
"""Changes of the suite ``basedir``, in their order."""


def with_a_miss(suite: str) -> str:
    """Expect a miss of the define that nothing uses, and all that follows in this test."""
    before, found, rest = suite.partition(_UNUSED)
    test, end, later = rest.partition("TEST ")
    more = {"preprocessed_cache_hit": -1, "cache_miss": 1, "files_in_cache": 1}

    def counted(match: re.Match[str]) -> str:
        return f"{match[1]} {int(match[3]) + more.get(match[2], 0)}"

    return f"{before}{found}{_COUNTER.sub(counted, test)}{end}{later}"


def for_nvcc(suite: str) -> str:
    """Return the suite ``basedir`` with nvcc's flags, without the tests of other rules."""
    for old, new in _FOR_NVCC:
        assert old in suite, old
        suite = suite.replace(old, new)
    suite = _ACTUAL_FOLDER.sub("\n", suite)
    begin, *blocks = re.split(r"(?=^    # -{60,}\n)", suite, flags=re.MULTILINE)
    kept = [block for block in blocks if not any(f'TEST "{name}"' in block for name in OTHER_RULES)]
    assert len(kept) == len(blocks) - len(OTHER_RULES)
    # The last test ended the function.
    return "".join([begin, *kept, "}\n"])


@pytest.mark.skipif("CCACHE_SOURCES" not in os.environ, reason="no sources of ccache")
@pytest.mark.parametrize(
    ("suite", "base"),
    [*((suite, base) for suite in SUITES for base in ("", "{folder}")), ("basedir", "")],
)
def test_a_suite_of_ccache_passes(
    suite: str, base: str, tmp_path: Path, whole_toolkit: Toolkit
) -> None:
    if shutil.which("cuobjdump") is None:
        pytest.skip("cuobjdump is missing")
    shutil.copytree(Path(os.environ["CCACHE_SOURCES"]) / "test", tmp_path / "test")
    suites = tmp_path / "test" / "suites"
    for name in SUITES:
        path = suites / f"{name}.bash"
        text = path.read_text().replace("compute_50", "compute_80")
        text = text.replace("compute_52", "compute_86").replace("sm_52", "sm_86")
        path.write_text(with_a_miss(text))
    (suites / "basedir.bash").write_text(for_nvcc((suites / "basedir.bash").read_text()))
    shim = tmp_path / "ccache"
    script = Path(__file__).with_name("ccache_shim.py")
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    shim.chmod(0o755)
    (tmp_path / "build").mkdir()
    around = {
        "PATH": f"{whole_toolkit.nvcc.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": SOURCE_PATH,
        "CCACHE": str(shim),
        "VERBOSE": "1",
        "ARCHSPLIT_CACHE_BASE_DIR": base.format(folder=tmp_path),
    }
    argv = ("bash", str(tmp_path / "test" / "run"), suite)
    done = subprocess.run(
        argv, cwd=tmp_path / "build", env=around, capture_output=True, text=True, check=False
    )
    assert "Skipped" not in done.stdout
    assert done.returncode == 0, done.stdout[-3000:]
