"""Record the output of ``nvcc --dryrun`` in each situation, for the tests of the parser.

    python tests/nvcc/record_transcripts.py --nvcc PATH --out tests/nvcc/transcripts/13.0
    python tests/nvcc/record_transcripts.py --shapes --nvcc OTHER --out tests/nvcc/transcripts/12.4
    python tests/nvcc/record_transcripts.py --tile --nvcc 13.4 --out tests/nvcc/transcripts/tile

Two runs write the same files: folders become ``${TOOLKIT}``, ``${FOLDER}`` (the private one) and
``${CWD}``, process numbers and addresses in temporary names are counted through. Texts
that nearly all have in common go to ``repeated.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from nvcc_situations import SHAPES, SITUATIONS, SOURCES, TILE, Recorded, Situation, written

SEARCHED = "/usr/bin:/bin"
_TEMPORARY = re.compile(r"tmpxft_[0-9a-f]{8}_[0-9a-f]{8}")
_VARIABLE = re.compile(r"#\$ \w+=")
_SHARED = {
    "MACROS": re.compile(r"-D__CUDACC_VER_MAJOR__=\S+(?: -D__\w+=\S+)*"),
    "DIALECT": re.compile(r"(?<=cudafe\+\+ )--.*?(?= --orig_src_file_name)"),
    "GNU": re.compile(r"--gnu_version=\d+"),
    "DEVICE": re.compile(r"-E -x c\+\+  -D.*?-D__NVCC__"),
    "PRECISION": re.compile(r"-ftz=0 (?:-\w+=\d )*-fmad=1"),
}
_ADDRESS = re.compile(r"(-\d+_)([0-9a-f]{4,16})(?=_std(?:out|err)\b)")
_SECONDS = re.compile(r"\d+\.\d+ , ms")
_STAGES = (" -E ", " rm ", "-- Filter", " cudafe++ ", "/cicc", " ptxas ", " fatbinary ", " -c ", "")


def main() -> None:
    """Run all situations and write their outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", type=Path, required=True, help="the compiler to ask")
    parser.add_argument("--out", type=Path, required=True, help="folder for its answers")
    parser.add_argument("--shapes", action="store_true", help="only what each release must have")
    parser.add_argument("--tile", action="store_true", help="only Tile kernels")
    arguments = parser.parse_args()
    situations = TILE if arguments.tile else SHAPES if arguments.shapes else SITUATIONS
    answers = [run_anywhere(arguments.nvcc.resolve(), each) for each in situations]
    shared = repeated_texts(answers[0].stderr)
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    for stale in out.glob("*.txt"):
        stale.unlink()
    (out / "repeated.json").write_text(json.dumps(shared, indent=1) + "\n")
    for situation, answer in zip(situations, answers, strict=True):
        short = replace(answer, stderr=shortened(answer.stderr, shared))
        (out / f"{situation.name}.txt").write_text(written(situation, short))


def repeated_texts(transcript: str) -> dict[str, str]:
    """Return the texts of nearly every transcript, the longest first."""
    lines = transcript.splitlines(keepends=True)
    preamble = "".join(itertools.takewhile(_VARIABLE.match, lines))
    found = {"${PREAMBLE}\n": preamble}
    for name in ("INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES"):
        value = re.search(rf"^#\$ {name}=(.*)", transcript, re.MULTILINE)
        if value is not None and value[1].strip():
            found[f"${{{name}}}"] = value[1].strip()
    for name, pattern in _SHARED.items():
        match = pattern.search(transcript)
        if match is not None:
            found[f"${{{name}}}"] = match[0]
    return found


def shortened(text: str, shared: dict[str, str]) -> str:
    """Replace the repeated texts by placeholders."""
    for short, long in shared.items():
        text = text.replace(long, short)
    return text


def run_anywhere(nvcc: Path, situation: Situation) -> Recorded:
    """Return the output of nvcc in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        return run_dryrun(nvcc, situation, Path(name).resolve())


def run_dryrun(nvcc: Path, situation: Situation, root: Path) -> Recorded:
    """Return the output of nvcc with placeholders; uses up the empty folder ``root``."""
    cwd, folder = root / "cwd", root / "private"
    for path in (folder, cwd / "sub" / "dir", cwd / "CMakeFiles" / "k.dir"):
        path.mkdir(parents=True)
    for name, text in SOURCES.items():
        (cwd / name).parent.mkdir(exist_ok=True)
        (cwd / name).write_text(text)
    places = {"FOLDER": folder, "CWD": cwd, "TOOLKIT": nvcc.parents[1]}
    settings = {name: _at(text, places) for name, text in situation.environment.items()}
    done = subprocess.run(
        [str(nvcc), "--dryrun", *(_at(argument, places) for argument in situation.arguments)],
        cwd=cwd,
        env={"PATH": SEARCHED, **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    answer = Recorded(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)
    return replace(
        answer, stdout=_stable(answer.stdout, places), stderr=_stable(answer.stderr, places)
    )


def _at(text: str, places: dict[str, Path]) -> str:
    for name, place in places.items():
        text = text.replace(f"${{{name}}}", str(place))
    return text


def _stable(text: str, places: dict[str, Path]) -> str:
    for name, place in places.items():
        text = text.replace(str(place), f"${{{name}}}")
        # In the names of modules, all but letters and digits has become an underscore.
        text = text.replace(re.sub(r"\W", "_", str(place)), "")
    text = _SECONDS.sub("0.0000 , ms", _TEMPORARY.sub("tmpxft_00000000_00000000", text))
    if _ADDRESS.search(text):
        text = _in_order(text)
    seen: dict[str, int] = {}
    return _ADDRESS.sub(
        lambda found: found[1] + f"{seen.setdefault(found[2], len(seen)):08x}", text
    )


def _in_order(text: str) -> str:
    """With --threads nvcc prints commands as its threads come to them, so they are sorted here.

    When 11.8 fails for want of their output, how many of them it has printed is left to chance.
    """
    lines = text.splitlines(keepends=True)
    if any("Could not open input file" in line for line in lines):
        return _ADDRESS.sub(r"\g<1>0", "".join(line for line in lines if not _is_command(line)))
    commands = sorted(
        filter(_is_command, lines),
        key=lambda line: (_stage(line), _ADDRESS.sub("", line)),
    )
    others = [line for line in lines if line not in commands]
    return "".join((*others, *commands))


def _is_command(line: str) -> bool:
    return line.startswith("#$ ") and not _VARIABLE.match(line)


def _stage(line: str) -> int:
    return next(place for place, word in enumerate(_STAGES) if word in line)


if __name__ == "__main__":
    main()
