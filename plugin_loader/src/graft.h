/* The device code of packs, put under the libraries of a split core. */
#ifndef ARCHSPLIT_GRAFT_H
#define ARCHSPLIT_GRAFT_H

#include "device_state.h"

/* See archsplit_graft. */
archsplit_status graft(const char *folder, const char *stub);

/* See archsplit_process_service, for the core of the state's loader. */
archsplit_status graft_coverage(const struct device_state *state, const char *folder,
                                struct capability capability, archsplit_service *service);

/* See archsplit_process_container. */
archsplit_status graft_describe(const char *folder, uint32_t index, archsplit_grafted *grafted);

#endif
