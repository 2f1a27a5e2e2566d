"""Mistakes that everybody makes once, and the message that each gets."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ARCHSPLIT = str(Path(sys.executable).with_name("archsplit"))
WINDOWS = "foo-1.0-py3-none-win_amd64.whl"
MISTAKES = [
    # words, exit code, message, hint
    ("splti", 2, "'splti' is no verb", "did you mean split?"),
    ("help inspekt", 2, "'inspekt' is no verb", "did you mean inspect?"),
    ("frobnicate", 2, "'frobnicate' is no verb", "see: archsplit help"),
    ("split text.txt --ouput o", 2, "archsplit split has no option --ouput", "mean --out?"),
    ("cache stats --jsno", 2, "archsplit cache has no option --jsno", "did you mean --json?"),
    ("split fat.whl", 2, "required: --out", "see: archsplit help split"),
    ("cache sats", 2, "invalid choice: 'sats'", "see: archsplit help cache"),
    ("split fta.whl --out o", 14, "fta.whl does not exist", "did you mean fat.whl?"),
    ("slim lib/a.so --device 9.0", 14, "lib/a.so does not exist", ""),
    ("split wheels --out o", 14, "wheels is a folder, not a file", f"such as wheels/{WINDOWS}"),
    ("verify text.txt", 14, "text.txt is not a folder", "name the folder: ."),
    ("verify whels", 14, "whels is not a folder: it does not exist", "did you mean wheels?"),
    ("join whels --out o", 14, "whels is not a folder", "did you mean wheels?"),
    ("gather whels --out o", 14, "whels is not a folder", "did you mean wheels?"),
    ("split text.txt --out o", 7, "neither a wheel nor a library: it begins", "a .whl or .so"),
    ("inspect text.txt", 7, "text.txt can't hold device code", "inspect a .so"),
    ("split https://x.org/f.whl --out o", 14, "is a URL", "pip download --no-deps https://x.org/"),
    ("inspect https://x.org/f.whl", 14, "is a URL", "pip download --no-deps https://x.org/"),
    ("split cupy-cuda12x --out o", 14, "neither a path nor", "pip download --no-deps cupy-cuda12x"),
    ("inspect cupy-cuda12x", 14, "neither a path nor", "pip download --no-deps cupy-cuda12x"),
    ("inspect torch==2.9.0", 14, "torch==2.9.0 is neither", "pip download --no-deps torch==2.9.0"),
    ("slim pytest --device 9.0", 14, "is installed", "archsplit inspect pytest shows its device"),
    ("doctor cupy-cuda12x", 14, "cupy-cuda12x is not installed", "what pip calls it"),
    ("inspect fat.whl --device H10", 5, "'H10' is no GPU or target", "9.0, sm_90, H100"),
    ("inspect fat.whl --device 99.9", 5, "no GPU of compute capability 99.9", "9.0, 10.0"),
    ("split fat.whl --out o --targets sm90x", 5, "'sm90x' is no GPU or target", "sm_90, H100"),
    ("inspect fat.whl --max-target 3", 2, "'3' is no limit for a target", "sm_90=30MB"),
    ("slim text.txt", 2, "expected exactly one of --device, --keep and --drop", "--device 9.0"),
    ("split fat.whl --out o --version 2", 2, "fat.whl has a version", "leave out --version"),
    ("toolkit --nvcc /no/nvcc", 4, "--nvcc: /no/nvcc: no such file", "archsplit[nvcc]"),
    ("split fat.whl --out o", 8, "fat.whl", ""),
    (f"slim wheels/{WINDOWS} --device 9.0", 8, WINDOWS, ""),
    ("build wheels --out o", 14, "recipe.toml", ""),
    ("publish whels --repository testpypi", 14, "whels is not a folder", "mean wheels?"),
    ("install", 2, "name what to install", "archsplit install NAME"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "text.txt").write_text("some text\n")
    (folder / "wheels").mkdir()
    for path in (folder / "fat.whl", folder / "wheels" / WINDOWS):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("foo/__init__.py", "")
    return folder


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"), MISTAKES, ids=[mistake[0] for mistake in MISTAKES]
)
def test_a_mistake_gets_its_message(
    folder: Path, words: str, code: int, message: str, hint: str
) -> None:
    before = sorted(folder.rglob("*"))
    done = subprocess.run(
        [ARCHSPLIT, *words.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    text, _, last = done.stderr.partition("\nhint: ")
    assert text.startswith("archsplit: ")
    assert message in text
    assert hint in last
    assert "Traceback" not in done.stderr
    assert sorted(folder.rglob("*")) == before
