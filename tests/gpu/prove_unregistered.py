"""Prove ``slim --unregistered zero`` on a GPU, with the evidence for the list of proven libraries.

``python tests/gpu/prove_unregistered.py --out FOLDER`` works on a copy of this Python's environment
and prints as it goes. ``evidence.json`` in FOLDER has, for each library in which something was
overwritten, the digests, and the operations that gave the same bytes before and after.
``--wrong 8.0`` also slims for another GPU and runs each library by itself here: which of them fail
with an error, and which with wrong numbers? ``--timings`` measures the commands.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_environment import (
    FRAMEWORKS,
    GpuEnvironment,
    copy_environment,
    link_environment,
    run_archsplit,
    stored_wheel,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_environment import OperationsRun, TimedCommand

LIBRARY_WORDS = {
    "libcublasLt": "cublasLt",
    "libcublas.": "cublas",
    "libcudnn": "cudnn",
    "libcufft": "cufft",
    "libcusparseLt": "cusparseLt",
    "libcusparse.": "cusparse",
    "libcusolver": "cusolver",
    "libcurand": "curand",
    "libnccl": "nccl",
    "torch/": "torch",
    "torchvision/": "torchvision",
    "cupy/": "cupy",
    "jax": "jax",
    "libnvrtc": "nvrtc",
}
"""A part of a library's path, and the word that operations have for the library."""

_FRAMEWORK_OF = {"curand": "cupy", "cupy": "cupy", "jax": "jax", "nvrtc": "cupy"}
_ONLY_EAGER = 25
_TWO = (0, 1)


class Proof:
    """The steps, with a limit of time for all of them."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.start = time.monotonic()
        self.evidence: dict[str, Any] = {}
        self.libraries: dict[str, tuple[str, ...]] = {}

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(5.0, float(self.arguments.seconds) - (time.monotonic() - self.start))

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        sys.stdout.write(f"[{time.monotonic() - self.start:5.0f} s] {text}\n")
        sys.stdout.flush()

    def keep(self) -> None:
        """Write what is known so far."""
        text = json.dumps(self.evidence, indent=1) + "\n"
        (self.arguments.out / "evidence.json").write_text(text)

    def operations(
        self, environment: GpuEnvironment, times: int = 1
    ) -> list[dict[str, OperationsRun]]:
        """Run the operations of all frameworks at the same time, some times."""
        words = ["--device", self.arguments.gpu, *self._limit()]
        with ThreadPoolExecutor() as pool:
            running = [
                {
                    one: pool.submit(environment.run, one, self.left, *words)
                    for one in self.frameworks
                }
                for _ in range(times)
            ]
            done = [{name: one.result() for name, one in each.items()} for each in running]
        for each in done:
            for name, one in each.items():
                self.libraries |= one.libraries
                if not one.summary:
                    self.say(f"{name} ended with {one.code}: {one.complaints[-300:]}")
        return done

    def _limit(self) -> list[str]:
        limit = self.arguments.limit
        return [] if limit is None else ["--limit", str(limit)]

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that are asked for."""
        return tuple(self.arguments.frameworks.split(","))

    def prove(self) -> bool:
        """Compare the operations before and after; return True if nothing differs."""
        fat = copy_environment(self.folder / "fat")
        slim = copy_environment(self.folder / "slim")
        self.say(f"{len(slim.libraries())} libraries, {slim.bytes_on_disk() / 1e6:.0f} MB on disk")
        with ThreadPoolExecutor() as pool:
            digests_future, check_future = pool.submit(fat.digests), pool.submit(fat.pip_check)
            runs = self.operations(fat, times=2)
            before, check = digests_future.result(), check_future.result()
        first, again = map(results_of, runs)
        steady = {name: one for name, one in first.items() if again.get(name) == one}
        failing = sorted(name for name, one in steady.items() if one.startswith("error"))
        self.say(f"before: {len(first)} operations, {len(steady)} steady, {len(failing)} fail")
        for name in failing:
            self.say(f"  {name}: {first[name][:110]}")
        self.say(f"  not steady: {sorted(set(first) - set(steady))}"[:400])
        self._summaries("before", runs[0])
        sizes = slim.bytes_on_disk()
        slimmed = run_archsplit(
            *("slim", "--site-packages", str(slim.site), "--device", self.arguments.device),
            *("--unregistered", "zero", "--ignore-record", "--json"),
            seconds=self.left,
        )
        report = self._slim_report(slimmed)
        after_size = slim.bytes_on_disk()
        self.say(f"du: {sizes / 1e6:.0f} -> {after_size / 1e6:.0f} MB; {figures(slimmed)}")
        self.evidence |= {"du_before": sizes, "du_after": after_size, "slim": figures(slimmed)}
        same_check = slim.pip_check() == check
        self.say(f"pip check {'unchanged' if same_check else 'CHANGED'}: {check[:200]}")
        with ThreadPoolExecutor() as pool:
            # Beside the operations: the copy for another GPU needs only the processor.
            wrong = pool.submit(self._slim_for_wrong) if self.arguments.wrong else None
            after_runs = self.operations(slim)[0]
            wrong_environment = wrong.result() if wrong else None
        after = results_of(after_runs)
        self._summaries("after", after_runs)
        good = {name: one for name, one in steady.items() if not one.startswith("error")}
        different = sorted(name for name, one in steady.items() if after.get(name) != one)
        equal = sorted(name for name, one in good.items() if after.get(name) == one)
        self.say(f"after: {len(equal)} of {len(good)} give the same bytes; DIFFERENT: {different}")
        for name in different[:12]:
            self.say(f"  {name}: {after.get(name, 'missing')[:110]}")
        mapped = {path for one in after_runs.values() for path in one.summary.get("mapped", ())}
        changed = slim.digests()
        undone = run_archsplit("slim", "--site-packages", str(slim.site), "--undo")
        restored = slim.digests() == before
        self.say(f"undo: {'byte for byte' if restored else 'DIFFERENT'}, {undone.seconds:.1f} s")
        self.evidence |= {
            "machine": self._machine(),
            "steady": len(good),
            "equal": len(equal),
            "different": different,
            "failing": failing,
            "undone": restored,
            "libraries": [
                self._library(file, before, changed, slim, mapped, equal)
                for file in report.get("files", ())
                if file["zeroed"]
            ],
        }
        for row in self.evidence["libraries"]:
            self.say(
                f"  {row['library']} {row['version']}: {row['zeroed_bytes'] / 1e6:.1f} MB zeroed,"
                f" {len(row['operations'])} operations, mapped: {row['mapped']}"
            )
        self.keep()
        if wrong_environment is not None:
            self._wrong_table(fat, wrong_environment, good)
        return restored and same_check and not different

    def _slim_report(self, slimmed: TimedCommand) -> dict[str, Any]:
        start = slimmed.output.find("{")
        try:
            report: dict[str, Any] = json.loads(slimmed.output[start:])
        except ValueError:
            self.say(f"slim ended with {slimmed.code}: {slimmed.output[-600:]}")
            return {}
        return report

    def _summaries(self, word: str, runs: Mapping[str, OperationsRun]) -> None:
        for name, one in runs.items():
            rest = {key: value for key, value in one.summary.items() if key != "mapped"}
            self.say(f"  {word}, {name}: {rest}")
            self.evidence[f"{word} {name}"] = rest

    def _machine(self) -> dict[str, str]:
        words = [
            "nvidia-smi",
            "--query-gpu=name,driver_version,compute_cap",
            "--format=csv,noheader",
        ]
        if shutil.which(words[0]) is None:
            return {}
        row = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        return dict(
            zip(("gpu", "driver", "capability"), row.splitlines()[0].split(", "), strict=False)
        )

    def _library(
        self,
        file: Mapping[str, Any],
        before: Mapping[str, str],
        changed: Mapping[str, str],
        slim: GpuEnvironment,
        mapped: set[str],
        equal: list[str],
    ) -> dict[str, Any]:
        word = word_of(file["path"])
        name, version = distribution_of(slim.site, file["path"])
        return {
            "library": file["path"],
            "distribution": name,
            "version": version,
            "sha256": before.get(file["path"]),
            "sha256_zeroed": changed.get(file["path"]),
            "zeroed_bytes": sum(row["file_bytes"] for row in file["unregistered"]),
            "zeroed": file["unregistered"],
            "mapped": str(slim.site / file["path"]) in mapped,
            "operations": [one for one in equal if word in self.libraries.get(one, ())],
        }

    def _slim_for_wrong(self) -> tuple[GpuEnvironment, dict[str, Any]]:
        wrong = copy_environment(self.folder / "wrong")
        done = run_archsplit(
            *("slim", "--site-packages", str(wrong.site), "--device", self.arguments.wrong),
            *("--unregistered", "zero", "--ignore-record", "--json"),
            seconds=self.left,
        )
        return wrong, self._slim_report(done)

    def _wrong_table(
        self,
        fat: GpuEnvironment,
        wrong: tuple[GpuEnvironment, dict[str, Any]],
        good: Mapping[str, str],
    ) -> None:
        environment, report = wrong
        groups: dict[str, list[str]] = {}
        for file in report.get("files", ()):
            if file["mode"] != "untouched" and (word := word_of(file["path"])):
                groups.setdefault(word, []).append(file["path"])
        self.say(f"slimmed for {self.arguments.wrong}, one library at a time:")
        with ThreadPoolExecutor(8) as pool:
            run = partial(self._run_wrong, fat, environment)
            rows = list(pool.map(lambda item: (item[0], run(*item)), groups.items()))
        table = {}
        for word, run_of_word in sorted(rows):
            table[word] = self._wrong_row(word, run_of_word, good)
        self.evidence["wrong"] = table
        self.keep()

    def _run_wrong(
        self, fat: GpuEnvironment, wrong: GpuEnvironment, word: str, paths: list[str]
    ) -> OperationsRun:
        here = link_environment(self.folder / f"wrong-{word}", fat)
        for path in paths:
            target = here.site / path
            target.unlink()
            os.link(wrong.site / path, target)
        words = ["--device", self.arguments.gpu, "--libraries", word]
        # A framework without any of its code fails at its first operation.
        words += ["--limit", str(_ONLY_EAGER)] if word in {"torch", "jax", "cupy"} else []
        return here.run(_FRAMEWORK_OF.get(word, "torch"), min(60.0, self.left), *words)

    def _wrong_row(self, word: str, run: OperationsRun, good: Mapping[str, str]) -> dict[str, Any]:
        compared = {name: one for name, one in run.results.items() if name in good}
        errors = {name: one for name, one in compared.items() if one.startswith("error")}
        equal = [name for name, one in compared.items() if one == good[name]]
        silent = sorted(set(compared) - set(errors) - set(equal))
        example = next(iter(errors.values()), "")
        row = {
            "operations": len(compared),
            "equal": len(equal),
            "errors": len(errors),
            "wrong": silent,
            "messages": sorted(set(errors.values()))[:6],
            "exit": run.code,
            "complaints": run.complaints[-300:] if run.code else "",
        }
        self.say(
            f"  {word}: {len(equal)} same, {len(errors)} errors, {len(silent)} WRONG"
            f" {silent[:4]}, exit {run.code} {example[6:100]}"
        )
        return row


def results_of(runs: Mapping[str, OperationsRun]) -> dict[str, str]:
    """Return the results of all frameworks."""
    return {name: result for one in runs.values() for name, result in one.results.items()}


def figures(timed: TimedCommand) -> str:
    """Return the measurements of a command in words."""
    return (
        f"{timed.seconds:.1f} s of wall, {timed.cpu_seconds:.1f} s of CPU,"
        f" {timed.peak_bytes / 1e6:.0f} MB, exit {timed.code}"
    )


def word_of(path: str) -> str | None:
    """Return the word that operations have for a library."""
    return next((word for part, word in LIBRARY_WORDS.items() if part in path), None)


def distribution_of(site: Path, path: str) -> tuple[str, str]:
    """Return the name and version of the distribution that lists a file."""
    for record in site.glob("*.dist-info/RECORD"):
        if any(line.startswith(f"{path},") for line in record.read_text().splitlines()):
            name, _, version = record.parent.name.removesuffix(".dist-info").rpartition("-")
            return name.replace("_", "-"), version
    return "", ""


def timings(proof: Proof) -> None:
    """Measure inspect and slim of the environment, on all cores and on two."""
    environment = GpuEnvironment(folder=proof.folder / "fat")
    result = {}
    several = len(os.sched_getaffinity(0)) > len(_TWO)
    for label, cores in (("all cores", ()), ("2 cores", _TWO)):
        if cores and not several:
            continue
        for words in (
            ("inspect", str(environment.site), "--json"),
            (
                *("slim", "--site-packages", str(environment.site), "--device", "9.0", "--dry-run"),
                *("--ignore-record", "--json"),
            ),
        ):
            timed = run_archsplit(*words, cores=cores, seconds=proof.left)
            result[f"{words[0]}, {label}"] = figures(timed)
            proof.say(f"{words[0]}, {label}: {figures(timed)}")
    for distribution in ("nvidia_cublas", "torch"):
        wheel = stored_wheel(environment, distribution, proof.folder)
        for label, cores in (("all cores", ()), ("2 cores", _TWO)):
            if cores and not several:
                continue
            out = proof.folder / f"split-{distribution}{len(cores)}"
            timed = run_archsplit(
                "split", str(wheel), "--out", str(out), cores=cores, seconds=proof.left
            )
            result[f"split {distribution}, {label}"] = figures(timed)
            problem = timed.output[-200:] if timed.code else ""
            proof.say(f"split {wheel.name}, {label}: {figures(timed)} {problem}")
            shutil.rmtree(out, ignore_errors=True)
        wheel.unlink()
    proof.evidence["timings"] = result
    proof.keep()


def parse(description: str) -> argparse.Namespace:
    """Return the options of a proof."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="native", help="the GPU to slim for")
    parser.add_argument("--gpu", default="cuda", help="the device of operations; cpu for a trial")
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS))
    parser.add_argument("--packages", help="prove_split: only these, torch,nvidia_cublas")
    parser.add_argument("--wrong", help="slim for this GPU as well: 8.0")
    parser.add_argument("--timings", action="store_true")
    parser.add_argument("--only-timings", action="store_true", help="run no operation")
    parser.add_argument("--limit", type=int, help="operations of each framework, for a trial")
    parser.add_argument("--seconds", type=float, default=3600)
    return parser.parse_args()


def main() -> int:
    """Prove it; exit with 1 if something differs."""
    arguments = parse(__doc__ or "")
    arguments.out.mkdir(parents=True, exist_ok=True)
    # On the file system of the environment: hard links can't cross to another.
    with tempfile.TemporaryDirectory(
        prefix="archsplit-proof-", dir=Path(sys.prefix).parent
    ) as name:
        proof = Proof(arguments, Path(name))
        if arguments.only_timings:
            copy_environment(proof.folder / "fat")
        right = arguments.only_timings or proof.prove()
        if arguments.timings or arguments.only_timings:
            timings(proof)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
