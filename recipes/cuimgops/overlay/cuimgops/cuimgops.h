/* The functions of cuimgops' CUDA sources, which have no header of their own. */
#ifndef CUIMGOPS_H
#define CUIMGOPS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void blur_conv(uint8_t *input, uint8_t *output, int width, int height, int channels);
void edge_detection(uint8_t *input, uint8_t *output, int width, int height, int channels);
void horizontal_flip(uint8_t *input, uint8_t *output, int width, int height, int channels);
void sharpening_conv(uint8_t *input, uint8_t *output, int width, int height, int channels);
void vertical_flip(uint8_t *input, uint8_t *output, int width, int height, int channels);
void add_gaussian_noise(uint8_t *image, int width, int height, int channels, float mean,
                        float stddev);

#ifdef __cplusplus
}
#endif

#endif
