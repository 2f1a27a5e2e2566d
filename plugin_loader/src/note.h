/* Find the archsplit note in a plugin's file. */
#ifndef ARCHSPLIT_NOTE_H
#define ARCHSPLIT_NOTE_H

#include "../include/archsplit/plugin_loader.h"
#include "os.h"

/* A descriptor as it lies in the file; nothing of it but its length was checked. */
struct note {
    uint32_t length;
    uint8_t bytes[ARCHSPLIT_MAX_DESCRIPTOR];
};

/* Walk the ELF file to its one archsplit note, never reading outside the file and never more than
 * a few kilobytes of it. ARCHSPLIT_ACCEPTED, or a refusal whose reason is the error text. */
archsplit_verdict note_read(const struct os_file *file, struct note *note);

#endif
