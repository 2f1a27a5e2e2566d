/* The list of the libraries of this process that were grafted. An entry is never removed, and the
 * caller holds the lock of cores.c. */
#ifndef ARCHSPLIT_GRAFTED_LIBRARIES_H
#define ARCHSPLIT_GRAFTED_LIBRARIES_H

#include "device_state.h"

struct grafted_container {
    archsplit_graft_state state;
    uint64_t wrapper; /* its address in the process */
    uint64_t data;    /* the address that the wrapper points at; 0 if it was not changed */
    uint64_t empty[CONTAINER_HEADER / sizeof(uint64_t)]; /* a container without images */
    uint32_t target_count;
    archsplit_target *targets; /* of its images that the driver can load */
};

struct grafted_library {
    struct grafted_library *next;
    char *folder; /* of the core */
    char *name;   /* its path in the core's wheel */
    char *stub;
    uint64_t base; /* load address */
    bool is_loaded;
    uint32_t first_container; /* number in the core's table */
    uint32_t container_count;
    struct grafted_container containers[];
};

/* The entry of a library, whose row is in the core's table; made at the first call, or NULL. */
struct grafted_library *grafted_get(const char *folder, const struct pack *table,
                                    const archsplit_pack_library *row, uint64_t base);

/* Copy the targets of a container; false without memory. */
bool grafted_set_targets(struct grafted_container *container, const archsplit_target *targets,
                         uint32_t count);

uint32_t grafted_count(const struct grafted_library *library, archsplit_graft_state state);

/* See archsplit_process_service, for the core of the state's loader. */
archsplit_status process_service(const struct device_state *state, const char *folder,
                                 struct capability capability, archsplit_service *service);

/* See archsplit_process_container. */
archsplit_status process_container(const char *folder, uint32_t index, archsplit_grafted *grafted);

#endif
