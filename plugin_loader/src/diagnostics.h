/* What the users of a split library are told, on standard error. */
#ifndef ARCHSPLIT_TELLING_H
#define ARCHSPLIT_TELLING_H

#include "loader.h"

/* A core whose libraries were loaded; it stays, because its packs stay under them. */
struct core {
    struct core *next;
    char *folder;
    char *package; /* as it is imported */
    archsplit_loader *loader;
};

/* Say that something keeps a library from being served. `core` is NULL, or has no package, where
 * nobody knows whose library it is. */
void tell(const struct core *core, const char *what);

/* Say which plugins were refused, and which GPUs miss code; ARCHSPLIT_STRICT=1 ends the process. */
void tell_state(const struct core *core);

#endif
