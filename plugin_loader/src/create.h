/* Creation of a loader.
 *
 * The loader of another core may be in this process, and an exported name may be bound to the
 * other's function: so nothing exported is called from inside. */
#ifndef ARCHSPLIT_CREATE_H
#define ARCHSPLIT_CREATE_H

#include "loader.h"

archsplit_status loader_create(const archsplit_core *core, archsplit_loader **loader);
void loader_destroy(archsplit_loader *loader);

#endif
