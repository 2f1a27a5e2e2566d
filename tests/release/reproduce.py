"""Build a recipe and split a wheel under differing circumstances: the bytes have to be the same.

``nox -s repro`` runs it. Every place differs from the first one in all that must not matter: the
folder, the user (another one where we may become it), umask, time zone, locale, the order in which
folders are read, the number of jobs, what the cache knows, Python's hash seed. Where bytes differ
it says in which member of which wheel, and which; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from release_samples import fat_wheel, ptx

from archsplit.cli.diff import wheel_differences
from archsplit.release.manifest import MANIFEST_FILE
from archsplit.system.fs import sha256
from source_roots import SOURCE_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parents[2]
SHUFFLER = Path(__file__).with_name("shuffled_readdir.c")
NOBODY_UID = 65534

_MAY_RUN = "import os, sys; import archsplit.cli.main; os.listdir(sys.argv[1])"
_MAIN = "import sys; from archsplit.cli.main import main; sys.exit(main(sys.argv[1:]))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The circumstances of one run.

    Attributes:
        words: what is special about it.
        folder: where its copy of the recipe lies, below the common one.
        cache: the folder of its compile cache; a place that shares it comes to a warm one.
        other_user: whether to become another user, if that is allowed.
        shuffled: whether folders are read in another order.
    """

    name: str
    words: str
    folder: str
    cache: str
    umask: int = 0o022
    jobs: int = 1
    other_user: bool = False
    shuffled: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


PLACES = (
    Place(
        name="here",
        words="one job, cold cache",
        folder="here",
        cache="cache-1",
        environment={"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "0"},
    ),
    Place(
        name="there",
        words="other folder, user, umask, zone, locale, order of folders, seed; more jobs; cold",
        folder="over there/with a länger name",
        cache="cache-2",
        umask=0o077,
        jobs=max(2, os.cpu_count() or 2),
        other_user=True,
        shuffled=True,
        environment={
            "TZ": "Pacific/Kiritimati",
            "LC_ALL": "C.UTF-8",
            "PYTHONHASHSEED": "4242",
            "USER": "somebody",
            "LOGNAME": "somebody",
        },
    ),
    Place(
        name="there again",
        words="the same as there once more, with a warm cache",
        folder="over there/again",
        cache="cache-2",
        umask=0o002,
        jobs=2,
        other_user=True,
        shuffled=True,
        environment={"TZ": "America/St_Johns", "LC_ALL": "POSIX", "PYTHONHASHSEED": "7"},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Facts that all places share: the folder, the preloaded library, the right to switch users."""

    folder: Path
    shuffler: Path
    other_user: bool

    def run(self, place: Place, *words: str, cwd: Path) -> None:
        """Run archsplit there."""
        home, temporary = (self.folder / f"{place.cache}-{name}" for name in ("home", "tmp"))
        user = place.other_user and self.other_user
        for each in (home, temporary, self.folder / place.cache):
            each.mkdir(exist_ok=True)
            if user:
                os.chown(each, NOBODY_UID, NOBODY_UID)
        kept = ("PATH", "LD_LIBRARY_PATH")
        environment = {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "ARCHSPLIT_CACHE_DIR": str(self.folder / place.cache),
            "SOURCE_DATE_EPOCH": "1700000000",
            # Another user may not see where this one has its packages.
            "PYTHONPATH": os.pathsep.join([SOURCE_PATH, *filter(None, sys.path)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            **place.environment,
        }
        if place.shuffled:
            environment |= {"LD_PRELOAD": str(self.shuffler), "SHUFFLED_READDIR": "20260721"}
        subprocess.run(
            [sys.executable, "-c", _MAIN, *words],
            check=True,
            cwd=cwd,
            env=environment,
            stdout=subprocess.DEVNULL,
            umask=place.umask,
            **({"user": NOBODY_UID, "group": NOBODY_UID, "extra_groups": []} if user else {}),  # type: ignore[call-overload]  # numbers and a list, by name
        )


def set_up(folder: Path) -> Bench:
    """Compile the preloaded library, and try whether we may become another user."""
    shuffler = folder / "shuffled_readdir.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shuffler, SHUFFLER, "-ldl"], check=True)
    folder.chmod(0o755)
    # Another user may not be allowed to run this Python, or to enter the folder.
    other = os.geteuid() == 0 and _may_run(folder)
    return Bench(folder=folder, shuffler=shuffler, other_user=other)


def _may_run(folder: Path) -> bool:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([SOURCE_PATH, *filter(None, sys.path)]),
    }
    try:
        subprocess.run(
            [sys.executable, "-c", _MAY_RUN, str(folder)],
            check=True,
            capture_output=True,
            user=NOBODY_UID,
            group=NOBODY_UID,
            env=environment,
            cwd="/",
        )
    except (PermissionError, subprocess.CalledProcessError):
        return False
    return True


def built_in(bench: Bench, place: Place, recipe: Path, options: tuple[str, ...]) -> Path:
    """Build a copy of the recipe, whose files were made in another order; give the wheels."""
    root = bench.folder / place.folder
    copy = root / recipe.name
    copy.mkdir(parents=True)
    files = sorted(path for path in recipe.rglob("*") if path.is_file())
    for path in reversed(files) if place.shuffled else files:
        new = copy / path.relative_to(recipe)
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, new)
    out = root / "wheels"
    _hand_over(bench, place, root)
    words = ["build", str(copy), "--out", str(out), "--jobs", str(place.jobs), "--quiet"]
    bench.run(place, *words, *options, cwd=root)
    return out


def split_in(bench: Bench, place: Place, wheel: Path) -> Path:
    """Split a copy of the wheel; give what it became."""
    root = bench.folder / place.folder
    root.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(wheel, root / wheel.name)
    out = root / "split"
    _hand_over(bench, place, root)
    bench.run(place, "split", str(root / wheel.name), "--out", str(out), cwd=root)
    return out


def compared(outputs: Mapping[str, Path]) -> dict[str, tuple[str, ...]]:
    """Return the differences from the first output, by the names of place and wheel."""
    (first, *others) = outputs.items()
    found: dict[str, tuple[str, ...]] = {}
    for name, folder in others:
        lines = wheel_differences(first[1], folder)
        if (folder / MANIFEST_FILE).read_bytes() != (first[1] / MANIFEST_FILE).read_bytes():
            lines = {**lines, MANIFEST_FILE: ("has other content",)}
        found |= {f"{name}: {file}": each for file, each in lines.items() if each}
    return found


def _hand_over(bench: Bench, place: Place, root: Path) -> None:
    if place.other_user and bench.other_user:
        for path in (*root.parents, root, *root.rglob("*")):
            if bench.folder in path.parents:
                os.chown(path, NOBODY_UID, NOBODY_UID)


def _tell(what: str, outputs: Mapping[str, Path], found: Mapping[str, tuple[str, ...]]) -> None:
    first = next(iter(outputs.values()))
    for path in sorted(first.glob("*.whl")):
        sys.stdout.write(f"{what}: {sha256(path)[:16]}  {path.name}\n")
    for name, lines in found.items():
        sys.stdout.write("".join(f"{what}: {name}: {line}\n" for line in lines))
    verdict = "NOT the same" if found else f"the same bytes, {len(outputs)} times"
    sys.stdout.write(f"{what}: {verdict}\n")


def reproduce(
    recipe: Path,
    wheel: Path | None,
    folder: Path,
    *,
    options: tuple[str, ...] = (),
    places: tuple[Place, ...] = PLACES,
    between: Callable[[Path], None] = lambda _: None,
) -> bool:
    """Do all of it; whether everything is the same.

    Args:
        recipe: its folder.
        wheel: to split; None for a small one made here.
        folder: an empty one.
        options: further ones for the build.
        between: what is done to the recipe before its last place.
    """
    bench = set_up(folder)
    if not bench.other_user:
        sys.stdout.write("the user stays the same; HOME, USER and LOGNAME don't\n")
    images = (ptx("compute_80", "a", "b"), ptx("compute_90", "a", "b"))
    wheel = wheel or fat_wheel(folder / "fat", *images)
    built, split = {}, {}
    for place in places:
        if place is places[-1]:
            between(recipe)
        sys.stdout.write(f"{place.name}: {place.words}\n")
        sys.stdout.flush()
        built[place.name] = built_in(bench, place, recipe, options)
        split[place.name] = split_in(bench, place, wheel)
    differs = False
    for what, outputs in (("build", built), ("split", split)):
        found = compared(outputs)
        _tell(what, outputs, found)
        differs = differs or bool(found)
    return not differs


def main() -> int:
    """Run the comparison of ``nox -s repro``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe", type=Path, nargs="?", default=ROOT / "recipes" / "vecsort")
    parser.add_argument("--wheel", type=Path, help="a fat wheel to split (default: a small one)")
    parser.add_argument("--targets", help="build the plugins of these targets only")
    parser.add_argument("--nvcc", help="nvcc, or its toolkit's folder")
    arguments = parser.parse_args()
    options: tuple[str, ...] = ("--nvcc", arguments.nvcc) if arguments.nvcc else ()
    options += ("--targets", arguments.targets) if arguments.targets else ()
    with tempfile.TemporaryDirectory() as name:
        recipe = arguments.recipe.resolve()
        same = reproduce(recipe, arguments.wheel, Path(name), options=options)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
