#include "coverage.h"

/* Replace `best` (none yet, if its kind is 0) if one container of a pack has a better target. */
static void update_best(const struct device_state *state, const struct candidate *candidate,
                        const struct pack *pack, uint32_t number, struct capability capability,
                        archsplit_target *best) {
    const archsplit_pack_container *container = pack_find(pack, number);
    for (uint32_t i = 0; i < container->image_count; i++) {
        const archsplit_target *target = &pack_image(pack, container->first_image + i)->target;
        if (target_runs_on(target, capability) &&
            (best->kind == 0 || target_is_better(target, best)) &&
            (candidate == NULL || state_can_load(state, candidate, target))) {
            *best = *target;
        }
    }
}

archsplit_target coverage_best(const struct device_state *state, uint32_t container,
                               struct capability capability) {
    archsplit_target best = {0};
    for (uint32_t i = 0; i < state->loader->count; i++) {
        const struct candidate *candidate = &state->loader->candidates[i];
        if (state_accepts(state, i)) {
            update_best(state, candidate, &candidate->pack, container, capability, &best);
        }
    }
    return best;
}

bool is_wanted(const struct wanted *wanted, const archsplit_target *target) {
    for (uint32_t i = 0; i < wanted->count; i++) {
        if (target_equals(&wanted->targets[i], target)) {
            return true;
        }
    }
    return wanted->all;
}

void coverage_wanted(const struct device_state *state, uint32_t container, struct wanted *wanted) {
    wanted->all = state->machine.state == ARCHSPLIT_DRIVER_FAILED;
    wanted->count = 0;
    for (uint32_t i = 0; i < state->machine.present_count; i++) {
        archsplit_target best = coverage_best(state, container, state->machine.present[i]);
        if (best.kind != 0 && !is_wanted(wanted, &best) && wanted->count < ARCHSPLIT_MAX_TARGETS) {
            wanted->targets[wanted->count++] = best;
        }
    }
}

/* Count one container in which the core had `ideal`, and in which there is `found`. */
static void count(archsplit_service *service, struct capability capability,
                  const archsplit_target *ideal, const archsplit_target *found) {
    if (found->kind == 0) {
        service->missing++;
        return;
    }
    bool native = found->major == capability.major && found->minor == capability.minor;
    if (found->kind == ARCHSPLIT_KIND_PTX) {
        service->ptx++;
    } else if (native) {
        service->native++;
    } else {
        service->older_minor++;
    }
    service->worse += target_is_better(ideal, found) ? 1 : 0;
}

/* True if a container is input of a device link, and the GPU has machine code of that link. */
static bool is_replaced(const struct device_state *state, uint32_t container,
                        struct capability capability) {
    const struct pack *table = &state->loader->table;
    if ((pack_container(table, container)->flags & ARCHSPLIT_CONTAINER_INPUT) == 0) {
        return false;
    }
    uint32_t owner = 0;
    const archsplit_pack_library *library = pack_library(table, owner);
    while (container >= library->first_container + library->container_count) {
        library = pack_library(table, ++owner);
    }
    bool replaced = false;
    for (uint32_t i = 0; i < library->container_count; i++) {
        uint32_t number = library->first_container + i;
        if ((pack_container(table, number)->flags & ARCHSPLIT_CONTAINER_LINKED) != 0) {
            if (coverage_best(state, number, capability).kind != ARCHSPLIT_KIND_SASS) {
                return false;
            }
            replaced = true;
        }
    }
    return replaced;
}

void coverage_add(const struct device_state *state, uint32_t container,
                  struct capability capability, const archsplit_target *found,
                  archsplit_service *service) {
    const struct pack *table = &state->loader->table;
    archsplit_target ideal = {0};
    update_best(state, NULL, table, container, capability, &ideal);
    uint32_t unused = pack_container(table, container)->flags & ARCHSPLIT_CONTAINER_UNUSED;
    if (ideal.kind != 0 &&
        (found->kind != 0 || (unused == 0 && !is_replaced(state, container, capability)))) {
        count(service, capability, &ideal, found);
    }
}

void coverage_count(const struct device_state *state, struct capability capability,
                    archsplit_service *service) {
    *service = (archsplit_service){0};
    for (uint32_t i = 0; i < state->loader->table.head.container_count; i++) {
        archsplit_target found = coverage_best(state, i, capability);
        coverage_add(state, i, capability, &found, service);
    }
}

static bool packs_are_native(const struct device_state *state, struct capability capability) {
    archsplit_service service;
    coverage_count(state, capability, &service);
    return service.missing == 0 && service.ptx == 0 && service.native + service.older_minor > 0;
}

bool coverage_is_native(const struct device_state *state, struct capability capability) {
    if (state->loader->has_packs) {
        return packs_are_native(state, capability);
    }
    archsplit_choice choice = {0};
    return state_choose(state, capability, &choice) && choice.target.kind == ARCHSPLIT_KIND_SASS;
}
