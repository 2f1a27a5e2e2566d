"""A library of kernels, compiled by nvcc into the package's folder."""

import os
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

TARGETS = ("75", "80", "90")


class BuildKernels(build_ext):
    """nvcc makes a plain shared library, for ctypes; it has no Python in it."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        targets = [f"-gencode=arch=compute_{each},code=sm_{each}" for each in TARGETS]
        newest = f"-gencode=arch=compute_{TARGETS[-1]},code=compute_{TARGETS[-1]}"
        command = [os.environ.get("NVCC", "nvcc"), "-O2", "-shared", "-Xcompiler=-fPIC"]
        subprocess.run([*command, *targets, newest, "-o", library, *ext.sources], check=True)


setup(
    ext_modules=[Extension("fastscale.libfastscale", ["src/fastscale.cu"])],
    cmdclass={"build_ext": BuildKernels},
)
