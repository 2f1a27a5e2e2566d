/* A stand-in for libcuda.so.1 that knows one call: addresses are memory of the device that
 * STAND_IN_DEVICE names, or of none if it is not set. */
#include <stdint.h>
#include <stdlib.h>

int cuPointerGetAttribute(int *data, int attribute, uint64_t address);

int cuPointerGetAttribute(int *data, int attribute, uint64_t address) {
    const char *device = getenv("STAND_IN_DEVICE");
    enum { device_ordinal = 9, invalid_value = 1 };
    if (device == NULL || attribute != device_ordinal || address == 0) {
        return invalid_value;
    }
    *data = atoi(device);
    return 0;
}
