/* A library that is loaded: which one it is, and where its wrappers are. */
#ifndef ARCHSPLIT_OBJECT_H
#define ARCHSPLIT_OBJECT_H

#include "os.h"

/* True if it has a DT_NEEDED of this name. */
bool object_needs(const struct os_object *object, const char *name);

/* True if its DT_SONAME is this name. */
bool object_is_named(const struct os_object *object, const char *name);

/* The folders, with colons between them, in which ld.so seeks what it needs: its DT_RUNPATH, else
 * its DT_RPATH, as they stand; NULL without either. */
const char *object_search_path(const struct os_object *object);

/* The field with a container's address in the wrapper at `wrapper`, which counts from the load
 * address. NULL without a wrapper that can be written. */
uint64_t *object_pointer(const struct os_object *object, uint64_t wrapper);

/* The content of its first note of this name and type, which lies in memory; NULL without one. */
const uint8_t *object_note(const struct os_object *object, const char *name, uint32_t type,
                           uint32_t *length);

#endif
