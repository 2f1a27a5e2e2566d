// A matrix product tiled into registers, all inner loops unrolled: little to parse, so that cicc
// and ptxas are nearly all of a compile.
#pragma once

constexpr int SIDE = 16; // threads of a block in each direction

template <class T, int ROWS, int COLUMNS, int DEPTH>
__global__ void gemm(const T *__restrict__ a, const T *__restrict__ b, T *__restrict__ c, int m,
                     int n, int k) {
    constexpr int HEIGHT = ROWS * SIDE;
    constexpr int WIDTH = COLUMNS * SIDE;
    __shared__ T left[2][DEPTH][HEIGHT];
    __shared__ T right[2][DEPTH][WIDTH];
    T sum[ROWS][COLUMNS] = {};
    const int row = threadIdx.y * ROWS;
    const int column = threadIdx.x * COLUMNS;
    const int thread = threadIdx.y * SIDE + threadIdx.x;
    a += blockIdx.y * HEIGHT;
    b += blockIdx.x * WIDTH;
    for (int at = 0, half = 0; at < k; at += DEPTH, half ^= 1) {
#pragma unroll
        for (int i = thread; i < DEPTH * HEIGHT; i += SIDE * SIDE) {
            left[half][i / HEIGHT][i % HEIGHT] = a[(at + i / HEIGHT) * m + i % HEIGHT];
        }
#pragma unroll
        for (int i = thread; i < DEPTH * WIDTH; i += SIDE * SIDE) {
            right[half][i / WIDTH][i % WIDTH] = b[(at + i / WIDTH) * n + i % WIDTH];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
#pragma unroll
            for (int y = 0; y < ROWS; ++y) {
#pragma unroll
                for (int x = 0; x < COLUMNS; ++x) {
                    sum[y][x] += left[half][i][row + y] * right[half][i][column + x];
                }
            }
        }
    }
    c += (blockIdx.y * HEIGHT + row) * n + blockIdx.x * WIDTH + column;
#pragma unroll
    for (int y = 0; y < ROWS; ++y) {
#pragma unroll
        for (int x = 0; x < COLUMNS; ++x) {
            c[y * n + x] = sum[y][x];
        }
    }
}

#define GEMM(T, ROWS, COLUMNS, DEPTH)                                                              \
    template __global__ void gemm<T, ROWS, COLUMNS, DEPTH>(const T *, const T *, T *, int, int,    \
                                                           int);
#define GEMMS_OF_TILE(T, ROWS, COLUMNS) GEMM(T, ROWS, COLUMNS, 8) GEMM(T, ROWS, COLUMNS, 16)
#define GEMMS(T)                                                                                   \
    GEMMS_OF_TILE(T, 4, 4)                                                                         \
    GEMMS_OF_TILE(T, 8, 4)                                                                         \
    GEMMS_OF_TILE(T, 4, 8)                                                                         \
    GEMMS_OF_TILE(T, 8, 8)                                                                         \
    GEMM(T, 8, 16, 8)                                                                              \
    GEMM(T, 16, 8, 8)
