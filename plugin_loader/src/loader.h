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
    archsplit_verdict verdict; /* what reading it came to; the driver has not been thought of */
    struct os_file file;       /* which file was read; it is no longer open */
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
    uint32_t digest_count; /* of plugins' libraries, as they are on record */
    uint8_t (*digests)[32];
    uint32_t count;
    struct candidate *candidates;
    struct surveys *surveys;
    bool has_table; /* the plugins are device packs */
    struct pack table;
};

/* The public functions that are called in here too. Another core's loader may be in this process,
 * and what is exported under one name may turn out to be the other's: so nothing exported is
 * called. */
archsplit_status loader_create(const archsplit_core *core, archsplit_loader **loader);
void loader_destroy(archsplit_loader *loader);

/* Read every file that may be a plugin and compare it with the core; NO_MEMORY is the only
 * failure. */
archsplit_status candidates_find(archsplit_loader *loader, const archsplit_core *core);

/* Keep a verdict, with the detail as its reason. */
archsplit_status candidate_judge(struct candidate *candidate, archsplit_verdict verdict);

/* Open a candidate's file again, if it is still the one that was read. */
archsplit_status candidate_reopen(const struct candidate *candidate, struct os_file *now);

/* Bring all of an accepted device pack into memory, if it isn't there; it must not have changed
 * since it was read. */
archsplit_status candidate_map(struct candidate *candidate);

/* Copy one of the public structs as far as the caller's reaches. */
archsplit_status loader_give(void *to, const void *from, uint32_t known);

/* Set the detail, return the status. */
archsplit_status loader_no_memory(void);
archsplit_status loader_bad_argument(const char *what);

#endif
