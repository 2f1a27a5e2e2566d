/* Put the images of device packs under a library. */
#ifndef ARCHSPLIT_GRAFT_H
#define ARCHSPLIT_GRAFT_H

#include "object.h"
#include "coverage.h"

/* Before the library of the row registers anything: point its wrappers at the containers that the
 * visible GPUs need. What no pack has stays as empty as it is. */
archsplit_status graft_library(const struct survey *survey, const archsplit_pack_library *library,
                               const struct os_object *object);

#endif
