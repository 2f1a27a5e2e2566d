/* Creation of a loader, and of the core that it is for. */
#ifndef ARCHSPLIT_CREATE_H
#define ARCHSPLIT_CREATE_H

#include "loader.h"

archsplit_status loader_create(const archsplit_core *core, archsplit_loader **loader);
void loader_destroy(archsplit_loader *loader);

#endif
