/* A library that is loaded: which one it is, and where its wrappers are. */
#ifndef ARCHSPLIT_OBJECT_H
#define ARCHSPLIT_OBJECT_H

#include "os.h"

/* Whether it has a DT_NEEDED of this name. */
bool object_needs(const struct os_object *object, const char *name);

/* The field of a wrapper that says where its container is, if there is a wrapper of ours that may
 * be changed: `wrapper` and `address` are as in archsplit_pack_container. NULL otherwise. */
uint64_t *object_pointer(const struct os_object *object, uint64_t wrapper, uint64_t address);

#endif
