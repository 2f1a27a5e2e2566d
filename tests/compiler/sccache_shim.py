# ruff: noqa: T201 - sccache's statistics go to standard output
"""sccache's command line for its own system tests, carried out by archsplit-nvcc.

``NVCC …`` compiles in a store below ``SHIM_FOLDER``. sccache counts a hit or a miss for each of the
steps below; here they follow from archsplit's own counts of the same steps. A hit of a whole
compilation is one of each step that it would take. No server is started or stopped.

Two answers differ by design. They are counted as sccache's, and told in ``differences``: sccache
runs cicc again for ``-cubin``, where archsplit has the PTX of ``-ptx``; archsplit runs it again
after an edit of a static variable that only the host has, because unit names follow from it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from counted_call import call_counted

_HOST, _DEVICE, _PTX, _CUBIN = "CUDA", "CUDA (Device code)", "PTX", "CUBIN"
_ADVANCED = {
    _HOST: "cuda [nvcc]",
    _DEVICE: "cuda [cudafe++]",
    _PTX: "ptx [cicc]",
    _CUBIN: "cubin [ptxas]",
}
_STEPS = {
    "host compile to assembly": _HOST,
    "cudafe++": _DEVICE,
    "cicc": _PTX,
    "ptxas": _CUBIN,
}


def main() -> int:
    """Do what sccache would do with the arguments."""
    folder = Path(os.environ["SHIM_FOLDER"])
    words = sys.argv[1:]
    if words[0] == "--show-stats":
        print(_statistics(_calls(folder)))
        return 0
    if words[0] in {"--zero-stats", "--stop-server", "--start-server"}:
        (folder / "calls").unlink(missing_ok=True)
        if words[0] == "--start-server":
            shutil.rmtree(folder / "store", ignore_errors=True)
        return 0
    code, added = call_counted(words, folder / "store")
    with (folder / "calls").open("a") as file:
        file.write(f"{json.dumps(_rows(words, added, folder))}\n")
    return code


def _rows(words: list[str], added: list[tuple[str, str]], folder: Path) -> list[tuple[str, str]]:
    """Return what sccache would count: a step, and a hit or a miss."""
    is_cuda = any(word.endswith(".cu") for word in words)
    if "-ptx" in words:
        steps = [_PTX]
    elif "-cubin" in words:
        steps = [_PTX, _CUBIN]
    else:
        steps = [_HOST, _DEVICE, _PTX, _CUBIN] if is_cuda else [_HOST]
    whole = {tier for step, tier in added if step == "request"}
    if whole != {"miss"}:
        return [(step, "hits") for step in steps]
    if not is_cuda:
        return [(_HOST, "misses")]
    found = {_STEPS[step]: tier for step, tier in added if step in _STEPS}
    rows = [(step, "misses" if found[step] == "miss" else "hits") for step in steps]
    if "-cubin" in words and (_PTX, "hits") in rows:
        return _differing(rows, "misses", folder)
    seen = (folder / "seen").read_text().splitlines() if (folder / "seen").exists() else []
    line = json.dumps([str(Path.cwd()), *words])
    with (folder / "seen").open("a") as file:
        file.write(f"{line}\n")
    if line in seen and {(_PTX, "misses"), (_CUBIN, "hits")} <= {*rows}:
        return _differing(rows, "hits", folder)
    return rows


def _differing(rows: list[tuple[str, str]], expected: str, folder: Path) -> list[tuple[str, str]]:
    with (folder / "differences").open("a") as file:
        file.write(f"{expected} of {_PTX} expected\n")
    return [(step, expected if step == _PTX else found) for step, found in rows]


def _calls(folder: Path) -> list[list[tuple[str, str]]]:
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [[(row[0], row[1]) for row in json.loads(line)] for line in lines]


def _statistics(calls: list[list[tuple[str, str]]]) -> str:
    """Return the counts as sccache's JSON."""
    nothing = {"secs": 0, "nanos": 0}
    stats: dict[str, object] = {
        "compile_requests": len(calls),
        # sccache counts the compilation and each of its steps.
        "requests_executed": sum(1 + len(rows) for rows in calls),
    }
    for kind in ("hits", "misses"):
        steps = [step for rows in calls for step, found in rows if found == kind]
        stats[f"cache_{kind}"] = {
            "counts": {step: steps.count(step) for step in steps},
            "adv_counts": {_ADVANCED[step]: steps.count(step) for step in steps},
        }
    for name in ("requests_unsupported_compiler", "requests_not_compile", "forced_recaches"):
        stats[name] = 0
    for name in ("requests_not_cacheable", "cache_timeouts", "cache_read_errors", "dist_errors"):
        stats[name] = 0
    for name in ("non_cacheable_compilations", "cache_write_errors", "cache_writes"):
        stats[name] = 0
    for name in ("compilations", "compile_fails"):
        stats[name] = 0
    for name in ("cache_write_duration", "cache_read_hit_duration", "compiler_write_duration"):
        stats[name] = nothing
    stats |= {"cache_errors": {"counts": {}, "adv_counts": {}}}
    stats |= {"not_cached": {}, "dist_compiles": {}}
    whole = {"stats": stats, "cache_location": "", "cache_size": None, "max_cache_size": None}
    return json.dumps({**whole, "use_preprocessor_cache_mode": True, "version": "0"})


if __name__ == "__main__":
    raise SystemExit(main())
