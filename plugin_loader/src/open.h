/* Choice of a plugin that is a library. */
#ifndef ARCHSPLIT_OPEN_H
#define ARCHSPLIT_OPEN_H

#include "compat.h"
#include "loader.h"

archsplit_status open_choose(const archsplit_loader *loader, struct capability capability,
                             archsplit_choice *choice);

#endif
