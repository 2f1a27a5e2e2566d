#include "service.h"

#include "detail.h"

/* The better of `best` (which may be none yet, with kind 0) and what one container of a pack has.
 */
static void improve(const archsplit_loader *loader, const struct candidate *candidate,
                    const struct pack *pack, uint32_t number, struct capability capability,
                    archsplit_target *best) {
    const archsplit_pack_container *container = pack_container(pack, number);
    for (uint32_t i = 0; i < container->image_count; i++) {
        const archsplit_target *target = &pack_image(pack, container->first_image + i)->target;
        if (target_runs_on(target, capability) &&
            (best->kind == 0 || target_is_better(target, best)) &&
            (candidate == NULL || candidate_driver_knows(loader, candidate, target))) {
            *best = *target;
        }
    }
}

/* What a GPU takes in a container, of all the packs that were accepted; kind 0 is for nothing. */
static archsplit_target found_for(const archsplit_loader *loader, uint32_t container,
                                  struct capability capability) {
    archsplit_target best = {0};
    for (uint32_t i = 0; i < loader->count; i++) {
        const struct candidate *candidate = &loader->candidates[i];
        if (candidate->verdict == ARCHSPLIT_ACCEPTED) {
            improve(loader, candidate, &candidate->pack, container, capability, &best);
        }
    }
    return best;
}

bool service_is_wanted(const struct wanted *wanted, const archsplit_target *target) {
    for (uint32_t i = 0; i < wanted->count; i++) {
        if (target_equals(&wanted->targets[i], target)) {
            return true;
        }
    }
    return wanted->all;
}

void service_wanted(const archsplit_loader *loader, uint32_t container, struct wanted *wanted) {
    wanted->all = loader->machine.state == ARCHSPLIT_DRIVER_FAILED;
    wanted->count = 0;
    for (uint32_t i = 0; i < loader->machine.device_count; i++) {
        archsplit_target best = found_for(loader, container, loader->machine.devices[i].capability);
        if (best.kind != 0 && !service_is_wanted(wanted, &best) &&
            wanted->count < ARCHSPLIT_MAX_TARGETS) {
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

archsplit_status archsplit_loader_service(const archsplit_loader *loader, uint32_t major,
                                          uint32_t minor, archsplit_service *service) {
    if (!loader->has_table) {
        return loader_bad_argument(
            "only a core with device packs is served container by container");
    }
    const struct capability capability = {major, minor};
    archsplit_service known = {0};
    for (uint32_t i = 0; i < loader->table.head.container_count; i++) {
        archsplit_target ideal = {0};
        improve(loader, NULL, &loader->table, i, capability, &ideal);
        archsplit_target found = found_for(loader, i, capability);
        uint32_t spare = pack_container(&loader->table, i)->flags & ARCHSPLIT_CONTAINER_SPARE;
        if (ideal.kind != 0 && (found.kind != 0 || spare == 0)) {
            count(&known, capability, &ideal, &found);
        }
    }
    return loader_give(service, &known, sizeof known);
}

archsplit_status archsplit_loader_verify(const archsplit_loader *loader, uint32_t index) {
    if (index >= loader->count || loader->candidates[index].pack.front == NULL ||
        loader->candidates[index].verdict != ARCHSPLIT_ACCEPTED) {
        return loader_bad_argument("there is no accepted device pack of this number");
    }
    struct candidate *candidate = &loader->candidates[index];
    archsplit_status status = candidate_map(candidate);
    if (status == ARCHSPLIT_OK && pack_verify(&candidate->pack) != ARCHSPLIT_ACCEPTED) {
        status = ARCHSPLIT_OPEN_FAILED;
    }
    return status;
}
