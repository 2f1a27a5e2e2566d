#include "device.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "os.h"

void machine_note(struct machine *machine, const char *format, ...) {
    if (machine->note_count == MAX_NOTES) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(machine->notes[machine->note_count], MAX_NOTE, format, arguments);
    va_end(arguments);
    text_escape(machine->notes[machine->note_count++], MAX_NOTE);
}

void machine_fail(struct machine *machine, archsplit_driver_state state, const char *format, ...) {
    machine->state = state;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(machine->reason, sizeof machine->reason, format, arguments);
    va_end(arguments);
    text_escape(machine->reason, sizeof machine->reason);
}

struct device *machine_add(struct machine *machine) {
    if (machine->device_count == MAX_DEVICES) {
        machine_note(machine, "there are more than %d devices; the rest is left out", MAX_DEVICES);
        return NULL;
    }
    struct device *device = &machine->devices[machine->device_count++];
    memset(device, 0, sizeof *device);
    return device;
}

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
