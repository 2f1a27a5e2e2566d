/* The folders in which the device packs of a core are sought. */
#ifndef ARCHSPLIT_PLACES_H
#define ARCHSPLIT_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "../include/archsplit/plugin_loader.h"

struct places {
    char *package;  /* of the core, as it is imported */
    char **folders; /* each <site>/<package>_plugins; ended by NULL */
    uint32_t count;
};

/* Find the places for a core: `folder` is its own without links, <site>/<package>/_archsplit, and
 * `stub` one of its stubs. */
archsplit_status places_find(const char *folder, const char *stub, struct places *places);
void places_free(struct places *places);

bool places_are_equal(const struct places *one, const struct places *other);

#endif
