/* Choice and opening of a plugin that is a library. */
#ifndef ARCHSPLIT_OPEN_H
#define ARCHSPLIT_OPEN_H

#include "compat.h"
#include "loader.h"

archsplit_status open_choose(const archsplit_loader *loader, struct capability capability,
                             archsplit_choice *choice);
archsplit_status open_for_device(archsplit_loader *loader, uint32_t device, void **plugin);
archsplit_status open_for_capability(archsplit_loader *loader, struct capability capability,
                                     void **plugin);
#endif
