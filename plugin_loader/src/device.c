#include "device.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

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

void machine_stop(struct machine *machine, archsplit_driver_state state, const char *format, ...) {
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
