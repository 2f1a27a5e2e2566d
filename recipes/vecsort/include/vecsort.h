/* vecsort: sort, scan, reduce and top-k over device memory.
 *
 * Rules that hold for every function that takes a stream:
 *
 *  1. Pointers are device (or managed) memory of the calling thread's current CUDA device, aligned
 *     to their element. A pointer to something else is refused before anything is enqueued.
 *  2. Work is enqueued on `stream` (a cudaStream_t; NULL is the legacy default stream) and the call
 *     returns without waiting for it. Memory must stay valid until the stream is past the work.
 *  3. Temporary memory comes from cudaMallocAsync on that stream and goes back with cudaFreeAsync
 *     before the call returns; nothing else is allocated. Each function says how much, for n items
 *     of K bytes each. What is freed stays in the device's default memory pool up to that pool's
 *     release threshold, which is 0 unless you raise it.
 *  4. An output may be exactly its input (in place) where it says so. Any other overlap is refused.
 *  5. n may be 0, and then pointers may be NULL. n is at most VECSORT_MAX_ITEMS.
 *  6. Functions are safe to call from many threads at once. They return a status; the text that
 *     belongs to the latest failure of the calling thread is at vecsort_last_error.
 *
 * The order of keys: integers by value. Floating point by value, with -0.0 before +0.0, and every
 * NaN, whatever its sign, after +infinity (NaNs among themselves: by their bits). Descending is
 * exactly the reverse. All bits of a key come through unchanged. Sorts of pairs and of indices are
 * stable: equal keys keep the order they had.
 */
#ifndef VECSORT_H
#define VECSORT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define VECSORT_API __attribute__((visibility("default")))
#else
#define VECSORT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Goes up when something below changes its meaning; what is only added leaves it as it is. */
#define VECSORT_ABI_VERSION 1

#define VECSORT_VERSION "1.0.0"

/* Item counts and indices fit 32 signed bits in this version. */
#define VECSORT_MAX_ITEMS INT64_C(2147483647)

typedef int32_t vecsort_status;
enum {
    VECSORT_OK = 0,
    VECSORT_ERROR_INVALID_ARGUMENT = 1, /* a null pointer, a count below 0, no such enumerator */
    VECSORT_ERROR_TOO_MANY_ITEMS = 2,   /* n is beyond VECSORT_MAX_ITEMS */
    VECSORT_ERROR_MISALIGNED = 3,       /* a pointer isn't aligned to its element */
    VECSORT_ERROR_OVERLAP = 4,          /* arrays overlap in a way that rule 4 doesn't allow */
    VECSORT_ERROR_NOT_ON_DEVICE = 5,    /* a pointer isn't memory of the current device */
    VECSORT_ERROR_OUT_OF_MEMORY = 6,    /* no device memory for the temporaries */
    VECSORT_ERROR_NO_DEVICE_CODE = 7,   /* this library has no code for the current device */
    VECSORT_ERROR_CUDA = 8,             /* any other failure of the CUDA runtime */
    VECSORT_ERROR_SELF_TEST = 9         /* vecsort_self_test got a wrong answer from the device */
};

typedef int32_t vecsort_dtype;
enum {
    VECSORT_FLOAT32 = 1,
    VECSORT_FLOAT64 = 2,
    VECSORT_INT32 = 3,
    VECSORT_INT64 = 4,
    VECSORT_UINT32 = 5,
    VECSORT_UINT64 = 6
};

typedef int32_t vecsort_order;
enum { VECSORT_ASCENDING = 0, VECSORT_DESCENDING = 1 };

typedef int32_t vecsort_scan_kind;
enum { VECSORT_INCLUSIVE = 0, VECSORT_EXCLUSIVE = 1 };

typedef int32_t vecsort_reduction;
enum { VECSORT_SUM = 0, VECSORT_MIN = 1, VECSORT_MAX = 2 };

/* The VECSORT_ABI_VERSION that this library was built with. */
VECSORT_API int32_t vecsort_abi_version(void);

/* The VECSORT_VERSION that this library was built with. */
VECSORT_API const char *vecsort_version(void);

/* What a status means, in a few words; never NULL, never freed. */
VECSORT_API const char *vecsort_error_string(vecsort_status status);

/* What went wrong in the calling thread's latest call that failed; "" before the first. Valid until
 * its next one. */
VECSORT_API const char *vecsort_last_error(void);

/* Makes `device` current for the calling thread, and tells which one was (`previous` may be NULL):
 * -1 if there was none, and -1 as `device` brings that back. For callers that have no CUDA runtime
 * of their own at hand, and who leave a thread as they found it. */
VECSORT_API vecsort_status vecsort_set_device(int32_t device, int32_t *previous);

/* Lets work enqueued on `stream` from now on wait for all that is on `other` now; the host doesn't
 * wait. */
VECSORT_API vecsort_status vecsort_stream_wait(void *stream, void *other);

/* Sorts keys. In place if keys_out is keys_in. Radix sort, O(n K). Temporaries: n K bytes, and at
 * most n / 3 + 64 KiB for the sort's own bookkeeping, here and wherever keys are sorted below. */
VECSORT_API vecsort_status vecsort_sort(vecsort_dtype dtype, vecsort_order order,
                                        const void *keys_in, void *keys_out, int64_t n,
                                        void *stream);

/* Sorts keys, and opaque values of 1, 2, 4, 8 or 16 bytes with them; stable. In place each on its
 * own if the output is the input. Values of 4 bytes move with their keys; others are gathered at
 * the end by a sorted index. Temporaries: n (K + 4) bytes for values of 4 bytes, n (K + 8) for
 * others, and n value_size more if those are sorted in place. */
VECSORT_API vecsort_status vecsort_sort_pairs(vecsort_dtype dtype, vecsort_order order,
                                              const void *keys_in, void *keys_out,
                                              const void *values_in, void *values_out,
                                              size_t value_size, int64_t n, void *stream);

/* The indices that would sort keys; stable. The keys stay as they are. Temporaries: n (2 K + 4)
 * bytes. */
VECSORT_API vecsort_status vecsort_argsort(vecsort_dtype dtype, vecsort_order order,
                                           const void *keys, int32_t *indices_out, int64_t n,
                                           void *stream);

/* Running sums: out[i] = in[0] + ... + in[i] (inclusive) or in[0] + ... + in[i - 1] (exclusive,
 * out[0] = 0). In place if out is in. Sums have the type of their items: integers wrap.
 * Floating-point sums are associated in an order that may differ from run to run. Temporaries: less
 * than n / 32 bytes and a few KiB. */
VECSORT_API vecsort_status vecsort_scan(vecsort_dtype dtype, vecsort_scan_kind kind, const void *in,
                                        void *out, int64_t n, void *stream);

/* One item, to *out in device memory: sum (of no items: 0), least or greatest (of no items: an
 * invalid argument). Sums have the type of their items: integers wrap; floating-point sums are the
 * same from run to run on one kind of device. Least and greatest of items with a NaN among them are
 * NaN. Temporaries: a few KiB. */
VECSORT_API vecsort_status vecsort_reduce(vecsort_dtype dtype, vecsort_reduction reduction,
                                          const void *in, void *out, int64_t n, void *stream);

/* The k first items of the sorted order: the greatest with VECSORT_DESCENDING, the least with
 * VECSORT_ASCENDING, sorted that way, and their indices; among equal items those with lower
 * indices, in their order. 0 <= k <= n. One of the outputs may be NULL. So "greatest" begins with
 * NaNs, if there are any.
 *
 * Radix select, one byte of the key at a time: it reads the input K + 2 times, finds the k-th item
 * without asking the host, and sorts k pairs: O(n K + k K). Temporaries: k (2 K + 8) bytes and 16
 * KiB. */
VECSORT_API vecsort_status vecsort_topk(vecsort_dtype dtype, vecsort_order order, const void *in,
                                        int64_t n, int64_t k, void *values_out,
                                        int32_t *indices_out, void *stream);

/* What vecsort_self_test found. Set struct_size to sizeof(vecsort_self_test_report) before the
 * call: fields that are added later come at the end, and a library fills in what fits. */
typedef struct vecsort_self_test_report {
    uint32_t struct_size;
    int32_t device; /* its CUDA ordinal */
    int32_t capability_major;
    int32_t capability_minor;
    char device_name[256];
    int64_t n;
    int64_t out_of_order; /* neighbours in the wrong order after the sort: 0 */
    int32_t same_items;   /* 1 if a checksum over the items says that none was lost or made up */
    int32_t reserved;     /* 0 */
    double milliseconds;  /* the fastest of three sorts on the device's clock, with temporaries */
} vecsort_self_test_report;

/* Sorts n pseudo-random float32 on the current device, checks the result there and waits for it.
 * Allocates 2 n floats and what vecsort_sort needs. A wrong result is VECSORT_ERROR_SELF_TEST, with
 * the report filled in. */
VECSORT_API vecsort_status vecsort_self_test(int64_t n, vecsort_self_test_report *report);

#ifdef __cplusplus
}
#endif

#endif /* VECSORT_H */
