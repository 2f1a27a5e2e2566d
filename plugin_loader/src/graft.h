/* The device code of packs, put under the libraries of a split core. */
#ifndef ARCHSPLIT_GRAFT_H
#define ARCHSPLIT_GRAFT_H

#include "device_state.h"

/* See archsplit_graft. */
archsplit_status graft(const char *folder, const char *stub);

#endif
