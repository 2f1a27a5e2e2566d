/* The files that may be plugins, and the verdict of reading each. */
#ifndef ARCHSPLIT_CANDIDATES_H
#define ARCHSPLIT_CANDIDATES_H

#include "loader.h"

/* Read every file that may be a plugin and compare it with the core; NO_MEMORY is the only
 * failure. */
archsplit_status candidates_find(archsplit_loader *loader, const archsplit_core *core);

/* Open a candidate's file again, if it is still the one that was read. */
archsplit_status candidate_reopen(const struct candidate *candidate, struct os_file *now);

/* Map an accepted device pack, if it is not mapped yet; it must not have changed since it was
 * read. */
archsplit_status candidate_map(struct candidate *candidate);

#endif
