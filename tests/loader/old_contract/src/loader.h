/* What a loader is made of. */
#ifndef ARCHSPLIT_LOADER_H
#define ARCHSPLIT_LOADER_H

#include <stdatomic.h>

#include "descriptor.h"
#include "device.h"
#include "os.h"
#include "pack.h"

struct candidate {
    char *path;
    char *reason;
    archsplit_verdict verdict;
    struct os_file file; /* which file was read; it is no longer open */
    struct descriptor descriptor;
    struct pack pack; /* of a device pack that was not refused */
    _Atomic(void *) plugin;
};

struct archsplit_loader {
    char *package;
    char *version;
    char *library;
    uint8_t build_id[32];
    uint8_t interface_hash[32];
    uint32_t count;
    struct candidate *candidates;
    struct machine machine;
    bool has_table; /* the plugins are device packs */
    struct pack table;
};

/* Read every file that may be a plugin and compare it with the core; NO_MEMORY is the only
 * failure. */
archsplit_status candidates_find(archsplit_loader *loader, const archsplit_core *core);

/* Once the driver is known: which of the accepted candidates it can use, and which of those an
 * earlier one makes needless. */
archsplit_status candidates_settle(archsplit_loader *loader);

/* Whether the driver at hand can load the code of one target of a candidate. */
bool candidate_driver_knows(const archsplit_loader *loader, const struct candidate *candidate,
                            const archsplit_target *target);

/* Bring all of an accepted device pack into memory, if it isn't there; it must not have changed
 * since it was read. */
archsplit_status candidate_map(struct candidate *candidate);

/* The device with CUDA's number `index`. */
archsplit_status loader_find_device(const archsplit_loader *loader, uint32_t index,
                                    const struct device **device);

/* Copy one of the public structs as far as the caller's reaches. */
archsplit_status loader_give(void *to, const void *from, uint32_t known);

/* Set the detail, return the status. */
archsplit_status loader_no_memory(void);
archsplit_status loader_bad_argument(const char *what);

#endif
