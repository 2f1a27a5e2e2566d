"""Lay out LightGBM's sources as a recipe: ``fetch.py FOLDER``, then ``archsplit build FOLDER``.

The sources come from the source distribution on the package index, pinned by its SHA-256 in
requirements.txt. NCCL's header comes from the installed nvidia-nccl-cu13, or from ``--nccl``.
"""
# ruff: noqa: INP001 (a script, no part of a package)

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess  # noqa: TID251 (a script for users, who may have no archsplit)
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path, PurePosixPath

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
NAME, PACKAGE = "lightgbm-archsplit", "lightgbm_archsplit"
NCCL = "nvidia-nccl-cu13"
COPIED = ("include/*", "src/*", "external_libs/*", "lightgbm/*", "LICENSE")
LEFT_OUT = (
    "external_libs/compute/*",  # for OpenCL
    "lightgbm/libpath.py",  # ours takes its place
    "src/application/application.cpp",  # the program for the command line
    "src/main.cpp",
)
LICENSES = {
    "LICENSE": "LightGBM.txt",
    "external_libs/fast_double_parser/LICENSE": "fast_double_parser.txt",
    "external_libs/fmt/LICENSE": "fmt.txt",
    "external_libs/nanoarrow/LICENSE.txt": "nanoarrow.txt",
    "external_libs/nanoarrow/NOTICE.txt": "nanoarrow-NOTICE.txt",
}


def main() -> int:
    """Return 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="is made, and must not be there")
    parser.add_argument("--name", default=NAME, help="of the core's distribution (%(default)s)")
    parser.add_argument("--package", default=PACKAGE, help="the import package (%(default)s)")
    parser.add_argument("--sdist", type=Path, help="instead of downloading it")
    parser.add_argument("--nccl", type=Path, help="a folder with include/nccl.h")
    asked = parser.parse_args()
    header = nccl_header(asked.nccl)
    if asked.folder.exists():
        parser.error(f"{asked.folder} is there already")
    with tempfile.TemporaryDirectory() as scratch:
        sdist = asked.sdist or download(Path(scratch))
        check(sdist)
        unpack(sdist, asked.folder)
    lay_out(asked.folder, header, asked.name, asked.package)
    sys.stdout.write(f"archsplit build {asked.folder} --out dist\n")
    return 0


def nccl_header(root: Path | None) -> Path:
    """Return the installed header."""
    if root is not None:
        found = [root / "include" / "nccl.h"]
    else:
        try:
            files = metadata.files(NCCL) or []
        except metadata.PackageNotFoundError:
            sys.exit(f"there is no {NCCL}; pip install {NCCL}, or say --nccl FOLDER")
        found = [Path(str(file.locate())) for file in files if file.name == "nccl.h"]
    if not found or not found[0].is_file():
        sys.exit(f"nccl.h not found in {root or NCCL}")
    return found[0]


def download(folder: Path) -> Path:
    """Get the source distribution from the index; pip checks it, too."""
    options = ["--quiet", "--no-deps", "--no-binary", "lightgbm", "--require-hashes"]
    where = ["--dest", str(folder), "--requirement", str(REQUIREMENTS)]
    command = [sys.executable, "-m", "pip", "download", *options, *where]
    subprocess.run(command, check=True)  # noqa: S603 (our own Python)
    return next(folder.glob("*.tar.gz"))


def check(sdist: Path) -> None:
    """Leave if it isn't the one that is pinned."""
    pinned = re.search(r"sha256:([0-9a-f]{64})", REQUIREMENTS.read_text())
    found = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if pinned is None or found != pinned[1]:
        sys.exit(f"{sdist} has the SHA-256 {found}, not that in {REQUIREMENTS.name}")


def unpack(sdist: Path, folder: Path) -> None:
    """Write what is compiled and what is imported."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            name = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if member.isfile() and wanted(name):
                content = archive.extractfile(member)
                assert content is not None, "a file has content"
                write(folder / name, content.read())


def wanted(name: PurePosixPath) -> bool:
    """Return True if a file of the source distribution is part of the recipe."""
    parents = {str(name), *(f"{parent}/*" for parent in name.parents)}
    return not parents.isdisjoint(COPIED) and parents.isdisjoint(LEFT_OUT)


def lay_out(folder: Path, nccl: Path, name: str, package: str) -> None:
    """Add what LightGBM's own build would make or find, and what is ours."""
    configure(folder / "external_libs" / "nanoarrow")
    write(folder / "external_libs" / "nccl" / "include" / "nccl.h", nccl.read_bytes())
    for source, license_name in LICENSES.items():
        write(folder / "licenses" / license_name, (folder / source).read_bytes())
    write(folder / "src" / "nccl_at_run_time.cpp", ours("overlay/nccl_at_run_time.cpp"))
    (folder / "python").mkdir()
    shutil.move(folder / "lightgbm", folder / "python" / package)
    write(folder / "python" / package / "libpath.py", ours("overlay/libpath.py"))
    write(folder / "README.md", ours("README.md"))
    write(folder / "pyproject.toml", ours("overlay/pyproject.toml"))
    recipe = ours("overlay/recipe.toml").decode()
    recipe = recipe.replace(f'name = "{NAME}"', f'name = "{name}"')
    recipe = recipe.replace(f'package = "{PACKAGE}"', f'package = "{package}"')
    write(folder / "recipe.toml", recipe.encode())


def configure(nanoarrow: Path) -> None:
    """Make nanoarrow_config.h as its CMakeLists.txt does."""
    version = re.search(r'NANOARROW_VERSION "([\d.]+)"', (nanoarrow / "CMakeLists.txt").read_text())
    assert version is not None, "nanoarrow has a version"
    template = nanoarrow / "src" / "nanoarrow" / "nanoarrow_config.h.in"
    text = template.read_text().replace("@NANOARROW_VERSION@", version[1])
    for part, number in zip(("MAJOR", "MINOR", "PATCH"), version[1].split("."), strict=True):
        text = text.replace(f"@NANOARROW_VERSION_{part}@", number)
    text = text.replace("@NANOARROW_NAMESPACE_DEFINE@", "")
    write(template.with_suffix(""), text.encode())


def ours(name: str) -> bytes:
    """Return the content of a file beside this one."""
    return (HERE / name).read_bytes()


def write(path: Path, content: bytes) -> None:
    """Write a file, and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
