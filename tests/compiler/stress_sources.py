"""The small sources that random command lines compile; most are right, some fail on purpose."""

from __future__ import annotations

GOOD = {
    "k.cu": '#include "k.h"\n'
    "static __device__ int table[4] = {ONE, 2, 3, 4};\n"
    "__global__ void fill(int* x) { x[threadIdx.x] = table[threadIdx.x & 3]; }\n"
    'extern "C" int run(int* x) { fill<<<1, 32>>>(x); return cudaGetLastError(); }\n',
    "m.cu": "template <int N> __global__ void add(float* x) { x[threadIdx.x] += N; }\n"
    "int main(int count, char**) {\n"
    "  if (count > 9) add<3><<<1, 32>>>(nullptr);\n"
    "  return 0;\n}\n",
    "n.cu": "static __global__ void lonely(int* x) { *x = __LINE__; }\n"
    "namespace { int go() { lonely<<<1, 1>>>(nullptr); return 0; } int gone = go(); }\n",
    "w.cu": "__global__ void warned(int* x) { int unused; *x = 1; }\n"
    "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900\n"
    "__device__ int late(int* x) { int other_unused; return *x; }\n"
    "#elif !defined(__CUDA_ARCH__)\n"
    "static int host_unused() { return 1; }\n"
    "#warning the host is warned\n"
    "#endif\n",
    "h.cu": '#include "k.h"\nint host_only(int x) { return x + ONE; }\n',
    "two words.cu": '#include "sub folder/z.h"\n'
    "__global__ void spaced(int* x) { *x = Z; }\n"
    'extern "C" const char* text() { return TEXT; }\n',
    "b/k.cu": '#include "../k.h"\n__global__ void other(int* x) { *x = ONE; }\n',
    "c.c": '#include "k.h"\nint c(void) { return ONE; }\n',
    "p.cpp": '#include "k.h"\nint p() { return ONE; }\n',
    "q.cc": "int q() { int unused; return 2; }\n",
}
"""Sources that compile with any of the flags that are drawn."""

RELOCATABLE = {
    "d.cu": "__device__ int twice(int x) { return 2 * x; }\n",
    "u.cu": "extern __device__ int twice(int x);\n"
    "__global__ void use(int* x) { *x = twice(*x); }\n"
    "int main() { use<<<1, 1>>>(nullptr); return 0; }\n",
}
"""Two that only link together, and only with -rdc=true."""

FAILING = {
    "syntax.cu": "__global__ void wrong(int* x) { *x = ; }\n",
    "host_error.cu": "#ifndef __CUDA_ARCH__\n#error only the host\n#endif\nint x;\n",
    "only90.cu": "#if __CUDA_ARCH__ == 900\n#error not for this one\n#endif\nint x;\n",
    "device_error.cu": "__global__ void f(int* x) {\n"
    "#ifdef __CUDA_ARCH__\n  nowhere(x);\n#endif\n}\n",
    "device_error90.cu": "__global__ void f(int* x) {\n"
    "#if __CUDA_ARCH__ == 900\n  nowhere(x);\n#endif\n}\n",
    "assembly.cu": '__global__ void f() { asm volatile("bogus.u32 a;"); }\n',
    "assembly90.cu": '__global__ void f() { asm volatile("griddepcontrol.wait;"); }\n',
    "shared.cu": "__global__ void f(int* x) {\n"
    "  __shared__ int big[60000];\n"
    "  big[threadIdx.x] = *x; __syncthreads(); *x = big[*x];\n}\n",
    "host_assembly.cu": 'int f() { asm volatile("bogus %eax"); return 0; }\n',
    "no_header.cu": '#include "nowhere.h"\nint x;\n',
    "no_header.cpp": '#include "nowhere.h"\nint x;\n',
    "wrong.c": "int c(void) { return ; ] }\n",
    "unresolved.cu": "int nowhere();\n__global__ void f() {}\nint main() { return nowhere(); }\n",
    "unresolved_device.cu": "extern __device__ int nowhere(int);\n"
    "__global__ void f(int* x) { *x = nowhere(*x); }\nint main() { return 0; }\n",
}
"""Sources that fail, each in another step, some for one target only."""

OTHERS = {
    "k.h": "#define ONE 1\n",
    "sub folder/z.h": '#define Z 1\n#ifndef TEXT\n#define TEXT "none"\n#endif\n',
    "flags.txt": '-DFROM_FILE="a b"\n-O2\n',
    "sub/empty.txt": "",
    "plain.txt": "__global__ void text(int* x) { *x = 1; }\n",
}

FILES = {**GOOD, **RELOCATABLE, **FAILING, **OTHERS}
"""Files that every run's folder has at the start."""
