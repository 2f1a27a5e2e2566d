/* The structs that a loader consists of. */
#ifndef ARCHSPLIT_LOADER_H
#define ARCHSPLIT_LOADER_H

#include <stdatomic.h>

#include "descriptor.h"
#include "os.h"
#include "pack.h"

struct candidate {
    char *path;
    char *reason;
    archsplit_verdict verdict; /* after reading it, without regard to the driver */
    struct os_file file;       /* which file was read; it is no longer open */
    struct descriptor descriptor;
    struct pack pack; /* of a device pack that was not refused */
    uint32_t folder;  /* its number in archsplit_core's list; 0 for a file */
    _Atomic(void *) plugin;
};

struct archsplit_loader {
    struct descriptor identity; /* of the core, as its table has it */
    char *library;              /* file name of a plugin */
    uint32_t digest_count;      /* of plugins' libraries, from the table or the installer */
    uint8_t (*digests)[32];
    uint32_t count;
    struct candidate *candidates;
    struct detection *detection; /* see detection.h */
    bool has_packs;              /* the plugins are device packs */
    bool verifies;               /* all bytes of plugins are compared with digests */
    struct pack table;
};

#endif
