/* A stand-in for vecsort's library: it writes down how it is called and touches no GPU. Compiling
 * it also shows that the public header is C11, and that it and the Python face agree on what there
 * is. */
#include "vecsort.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char calls[4096];
static vecsort_status planned;
static int32_t current_device = -1;

static vecsort_status note(const char *format, ...) {
    size_t used = strlen(calls);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(calls + used, sizeof calls - used, format, arguments);
    va_end(arguments);
    return planned;
}

/* What has been called since the last time that somebody asked. */
VECSORT_API const char *stand_in_calls(void) {
    static char taken[sizeof calls];
    memcpy(taken, calls, sizeof calls);
    calls[0] = '\0';
    return taken;
}

VECSORT_API void stand_in_plan(vecsort_status status) {
    planned = status;
}

int32_t vecsort_abi_version(void) {
    return VECSORT_ABI_VERSION;
}

const char *vecsort_version(void) {
    return VECSORT_VERSION;
}

const char *vecsort_error_string(vecsort_status status) {
    return status == VECSORT_ERROR_CUDA ? "a CUDA call failed" : "another status";
}

const char *vecsort_last_error(void) {
    return "planned by the test";
}

vecsort_status vecsort_set_device(int32_t device, int32_t *previous) {
    if (previous != NULL) {
        *previous = current_device;
    }
    current_device = device;
    note("set_device %d\n", device);
    return VECSORT_OK;
}

vecsort_status vecsort_stream_wait(void *stream, void *other) {
    return note("stream_wait %p %p\n", stream, other);
}

vecsort_status vecsort_sort(vecsort_dtype dtype, vecsort_order order, const void *keys_in,
                            void *keys_out, int64_t n, void *stream) {
    return note("sort %d %d %p %p %lld %p\n", dtype, order, keys_in, keys_out, (long long)n,
                stream);
}

vecsort_status vecsort_sort_pairs(vecsort_dtype dtype, vecsort_order order, const void *keys_in,
                                  void *keys_out, const void *values_in, void *values_out,
                                  size_t value_size, int64_t n, void *stream) {
    return note("sort_pairs %d %d %p %p %p %p %zu %lld %p\n", dtype, order, keys_in, keys_out,
                values_in, values_out, value_size, (long long)n, stream);
}

vecsort_status vecsort_argsort(vecsort_dtype dtype, vecsort_order order, const void *keys,
                               int32_t *indices_out, int64_t n, void *stream) {
    return note("argsort %d %d %p %p %lld %p\n", dtype, order, keys, (void *)indices_out,
                (long long)n, stream);
}

vecsort_status vecsort_scan(vecsort_dtype dtype, vecsort_scan_kind kind, const void *in, void *out,
                            int64_t n, void *stream) {
    return note("scan %d %d %p %p %lld %p\n", dtype, kind, in, out, (long long)n, stream);
}

vecsort_status vecsort_reduce(vecsort_dtype dtype, vecsort_reduction reduction, const void *in,
                              void *out, int64_t n, void *stream) {
    return note("reduce %d %d %p %p %lld %p\n", dtype, reduction, in, out, (long long)n, stream);
}

vecsort_status vecsort_topk(vecsort_dtype dtype, vecsort_order order, const void *in, int64_t n,
                            int64_t k, void *values_out, int32_t *indices_out, void *stream) {
    return note("topk %d %d %p %lld %lld %p %p %p\n", dtype, order, in, (long long)n, (long long)k,
                values_out, (void *)indices_out, stream);
}

vecsort_status vecsort_self_test(int64_t n, vecsort_self_test_report *report) {
    vecsort_self_test_report result = {.struct_size = sizeof result,
                                       .capability_major = 9,
                                       .device_name = "Stand-in",
                                       .n = n,
                                       .same_items = 1,
                                       .milliseconds = 0.5};
    if (report->struct_size != sizeof result) {
        return VECSORT_ERROR_INVALID_ARGUMENT;
    }
    *report = result;
    return note("self_test %lld\n", (long long)n);
}
