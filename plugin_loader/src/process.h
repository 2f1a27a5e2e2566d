/* The code that the loaded libraries of a core have in this process. */
#ifndef ARCHSPLIT_PROCESS_H
#define ARCHSPLIT_PROCESS_H

#include "device_state.h"

/* See archsplit_process_service, for the core of the state's loader. */
archsplit_status process_service(const struct device_state *state, const char *folder,
                                 struct capability capability, archsplit_service *service);

/* See archsplit_process_container. */
archsplit_status process_container(const char *folder, uint32_t index, archsplit_grafted *grafted);

#endif
