/* The images that a GPU takes from the device packs at hand, container by container. */
#ifndef ARCHSPLIT_COVERAGE_H
#define ARCHSPLIT_COVERAGE_H

#include "device_state.h"

/* The targets that one container should have: the best one at hand for each GPU. */
struct wanted {
    bool all; /* the GPUs are unknown, so everything may be needed */
    uint32_t count;
    archsplit_target targets[ARCHSPLIT_MAX_TARGETS];
};

/* Find the targets that the GPUs of the machine, visible or not, take in a container. */
void coverage_wanted(const struct device_state *state, uint32_t container, struct wanted *wanted);

bool is_wanted(const struct wanted *wanted, const archsplit_target *target);

/* The target that a GPU takes in a container, of all the packs that were accepted; kind 0 is for
 * nothing. */
archsplit_target coverage_best(const struct device_state *state, uint32_t container,
                               struct capability capability);

/* Count one container, in which a GPU finds `found`. */
void coverage_add(const struct device_state *state, uint32_t container,
                  struct capability capability, const archsplit_target *found,
                  archsplit_service *service);

/* Count how the containers of a core with a table are served for one capability. */
void coverage_count(const struct device_state *state, struct capability capability,
                    archsplit_service *service);

/* True if SASS, which no driver has to compile, serves all that a capability needs. */
bool coverage_is_native(const struct device_state *state, struct capability capability);

#endif
