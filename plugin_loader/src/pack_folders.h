/* The folders in which the device packs of a core are sought. */
#ifndef ARCHSPLIT_PACK_FOLDERS_H
#define ARCHSPLIT_PACK_FOLDERS_H

#include <stdbool.h>
#include <stdint.h>

#include "../include/archsplit/plugin_loader.h"

struct pack_folders {
    char *package;  /* of the core, as it is imported */
    char **folders; /* each <site>/<package>_plugins; ended by NULL */
    uint32_t count;
};

/* Find the folders for a core: `folder` is its own without links, <site>/<package>/_archsplit, and
 * `stub` one of its stubs. */
archsplit_status pack_folders_find(const char *folder, const char *stub,
                                   struct pack_folders *packs);
void pack_folders_free(struct pack_folders *packs);

bool pack_folders_equal(const struct pack_folders *one, const struct pack_folders *other);

#endif
