/* A table in device memory, which two sources share. */
#ifndef TINYRDC_H
#define TINYRDC_H

#ifdef __cplusplus
extern "C" {
#endif

/* Both return 0, or a cudaError_t; the pointers are of the host. */
__attribute__((visibility("default"))) int tinyrdc_set(int offset);
__attribute__((visibility("default"))) int tinyrdc_apply(const int *items, int *results, int count);

#ifdef __cplusplus
}
#endif

#endif
