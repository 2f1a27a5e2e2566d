#include "libcuda.h"

#include <string.h>

#include "os.h"

#ifndef LIBCUDA
#define LIBCUDA "libcuda.so.1"
#endif

/* Source: CUDA driver API, "Version Management": it is one of the functions that need no cuInit. */
uint32_t libcuda_version(void) {
    void *library = os_library_open(LIBCUDA);
    void *address = library != NULL ? os_library_symbol(library, "cuDriverGetVersion") : NULL;
    int (*get_version)(int *);
    int version = 0;
    if (address == NULL) {
        return 0;
    }
    memcpy(&get_version, &address, sizeof address);
    return get_version(&version) == 0 && version > 0 ? (uint32_t)version : 0;
}
