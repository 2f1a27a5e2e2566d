/* Which images of the device packs at hand a GPU takes, container by container. */
#ifndef ARCHSPLIT_SERVICE_H
#define ARCHSPLIT_SERVICE_H

#include "selection.h"

/* The targets that one container should have: what each GPU takes of what there is. */
struct wanted {
    bool all; /* nobody knows the GPUs, so everything may be needed */
    uint32_t count;
    archsplit_target targets[ARCHSPLIT_MAX_TARGETS];
};

/* What the GPUs that CUDA shows to this process take in the container of this number. */
void service_wanted(const struct survey *survey, uint32_t container, struct wanted *wanted);

bool service_is_wanted(const struct wanted *wanted, const archsplit_target *target);

/* Count how the containers of a core with a table are served for one capability. */
void service_count(const struct survey *survey, struct capability capability,
                   archsplit_service *service);

#endif
