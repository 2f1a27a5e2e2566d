export PYTORCH_NVCC=archsplit-nvcc
export TORCH_CUDA_ARCH_LIST="8.0;9.0+PTX"
python -m build --wheel --no-isolation --outdir fat
archsplit split fat/*.whl --out dist
archsplit verify dist
