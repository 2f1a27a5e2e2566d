/* Vectors of floats in device memory. */
#ifndef TINYVEC_H
#define TINYVEC_H

#ifdef __cplusplus
extern "C" {
#endif

/* Both return 0, or a cudaError_t. */
__attribute__((visibility("default"))) int tinyvec_add(float *sum, const float *other, int count);
__attribute__((visibility("default"))) int tinyvec_scale(float *vector, float factor, int count);

__attribute__((visibility("default"))) const char *tinyvec_name(void);

#ifdef __cplusplus
}
#endif

#endif
