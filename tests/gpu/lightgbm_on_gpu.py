"""Train with LightGBM on a GPU, and compare models; for libraries and wheels built elsewhere.

``python tests/gpu/lightgbm_on_gpu.py --python SOURCES LIBRARY… [--wheels FOLDER]`` trains the same
data with each library under LightGBM's own Python package in SOURCES, and with the core and plugin
wheels in FOLDER. The first one trains twice, because sums on a GPU depend on the order of threads.
Exits with 1 if a model is not the first one's: the same text where both of its own are, else as
good. It needs NumPy, SciPy and narwhals.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROWS, COLUMNS, ROUNDS, TESTED = 200_000, 30, 30, 10_000
TASKS = ("binary", "regression", "multiclass", "lambdarank")
NEAR = 0.003
SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model as text, the seconds that training took, and a correlation or an accuracy."""

    model: str
    seconds: float
    quality: float


def train(folder: str, package: str, objective: str, device: str) -> Trained:
    """Train in this process, with the package in a folder."""
    sys.path.insert(0, folder)
    # Libraries that a compiler linked with a C++ runtime of their own clash with pyarrow's.
    sys.modules.update(dict.fromkeys(("pandas", "pyarrow")))  # type: ignore[arg-type]
    numpy = importlib.import_module("numpy")
    lightgbm = importlib.import_module(package)
    features = numpy.random.default_rng(1).normal(size=(ROWS, COLUMNS))
    score = features[:, 0] * features[:, 1] + numpy.sin(3 * features[:, 2]) + features[:, 3]
    classes = {"binary": (0,), "multiclass": (-1, 0, 1), "lambdarank": (-1, 0, 1)}
    labels = numpy.digitize(score, classes[objective]) if objective in classes else score
    group = [100] * (ROWS // 100) if objective == "lambdarank" else None
    parameters = {
        "objective": objective,
        "device_type": device,
        "seed": 3,
        "num_leaves": 63,
        "verbosity": -1,
        "num_class": 4 if objective == "multiclass" else 1,
    }
    data = lightgbm.Dataset(features, labels.astype(float), group=group)
    started = time.monotonic()
    booster = lightgbm.train(parameters, data, num_boost_round=ROUNDS)
    seconds = time.monotonic() - started
    guess = booster.predict(features[:TESTED])
    if objective == "multiclass":
        quality = numpy.mean(guess.argmax(axis=1) == labels[:TESTED])
    else:
        quality = numpy.corrcoef(guess, score[:TESTED])[0, 1]
    return Trained(model=booster.model_to_string(), seconds=seconds, quality=float(quality))


def trained(folder: str, package: str, task: str, device: str) -> Trained:
    """The same in a process of its own, because LightGBM ends its process when it is in trouble."""
    command = [sys.executable, __file__, "--train", folder, package, task, device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{task}: {folder}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return Trained(**json.loads(done.stdout.splitlines()[-1]))


def with_library(python: Path, library: Path, folder: Path) -> tuple[str, str]:
    """LightGBM's own package over a library: where it lies, and its name."""
    place = folder / library.stem
    shutil.copytree(python / "lightgbm", place / "lightgbm")
    (place / "lightgbm" / "lib").mkdir()
    shutil.copy2(library, place / "lightgbm" / "lib" / "lib_lightgbm.so")
    return str(place), "lightgbm"


def installed(wheels: Path, folder: Path) -> tuple[str, str]:
    """The core and the plugins in a folder of wheels, installed."""
    place = folder / wheels.name
    options = ["--quiet", "--no-index", "--no-deps", "--target", str(place)]
    files = [str(path) for path in sorted(wheels.glob("*.whl"))]
    command = [sys.executable, "-m", "pip", "install", *options, *files]
    subprocess.run(command, check=True)
    (core,) = place.glob("*/_archsplit/core.json")
    return str(place), core.parents[1].name


def compared(places: list[tuple[str, str]], task: str, device: str) -> bool:
    """Return True if all places make the same model as the first one."""
    results: list[Trained] = []
    for folder, package in (places[0], *places):
        result = trained(folder, package, task, device)
        results.append(result)
        how = "the same model" if result.model == results[0].model else "another model"
        name = Path(folder).name
        say(f"{task}: {name}: {result.seconds:.2f} s, quality {result.quality:.4f}, {how}")
    first, again, *others = results
    if first.model == again.model:
        return all(one.model == first.model for one in others)
    return all(abs(one.quality - first.quality) < NEAR for one in others)


def say(text: str) -> None:
    """Print it at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Return 0 if all models are as they should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", type=Path, nargs="*")
    parser.add_argument("--python", type=Path, help="where LightGBM's sources are")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train:
        say(json.dumps(asdict(train(*asked.train))))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        places = [with_library(asked.python, each, Path(scratch)) for each in asked.libraries]
        if asked.wheels:
            places.append(installed(asked.wheels, Path(scratch)))
        right = [compared(places, task, asked.device) for task in asked.tasks]
    say("all right" if all(right) else "NOT the same models")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
