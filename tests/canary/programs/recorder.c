/* In place of CUDA's runtime: prints each registration, and what the wrapper has at that moment. */
#include <stdint.h>
#include <stdio.h>

struct wrapper {
    uint32_t magic, version;
    const void *data;
    void *more;
};
static void *handle;

void **__cudaRegisterFatBinary(void *fatbin) {
    const struct wrapper *wrapper = fatbin;
    printf("register %08x %u %08x\n", wrapper->magic, wrapper->version,
           *(const uint32_t *)wrapper->data);
    fflush(stdout);
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **fatbin) {
    (void)fatbin;
}
void __cudaUnregisterFatBinary(void **fatbin) {
    (void)fatbin;
}
void __cudaRegisterFunction(void) {
}
void __cudaRegisterVar(void) {
}
char __cudaInitModule(void **fatbin) {
    (void)fatbin;
    return 1;
}
