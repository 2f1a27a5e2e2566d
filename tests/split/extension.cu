// A Python extension with device code of its own.
#include <Python.h>

__global__ void twice(int *x) {
    x[0] = 2 * x[0];
}

static PyObject *run(PyObject *, PyObject *value) {
    int *there = nullptr, number = (int)PyLong_AsLong(value);
    cudaMalloc(&there, sizeof number);
    cudaMemcpy(there, &number, sizeof number, cudaMemcpyHostToDevice);
    twice<<<1, 1>>>(there);
    cudaMemcpy(&number, there, sizeof number, cudaMemcpyDeviceToHost);
    return PyLong_FromLong(number);
}

static PyMethodDef methods[] = {{"twice", run, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "extension", nullptr, -1, methods};

PyMODINIT_FUNC PyInit_extension(void) {
    return PyModule_Create(&module);
}
