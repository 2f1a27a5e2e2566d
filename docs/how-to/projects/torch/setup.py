"""A PyTorch operator in one CUDA source."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="fastscale-torch",
    version="1.0.0",
    ext_modules=[CUDAExtension("fastscale_torch", ["fastscale_torch.cu"])],
    cmdclass={"build_ext": BuildExtension},
)
