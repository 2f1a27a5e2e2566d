#include "coverage.h"

#include "error.h"

/* The better of `best` (which may be none yet, with kind 0) and what one container of a pack has.
 */
static void improve(const struct survey *survey, const struct candidate *candidate,
                    const struct pack *pack, uint32_t number, struct capability capability,
                    archsplit_target *best) {
    const archsplit_pack_container *container = pack_container(pack, number);
    for (uint32_t i = 0; i < container->image_count; i++) {
        const archsplit_target *target = &pack_image(pack, container->first_image + i)->target;
        if (target_runs_on(target, capability) &&
            (best->kind == 0 || target_is_better(target, best)) &&
            (candidate == NULL || survey_driver_knows(survey, candidate, target))) {
            *best = *target;
        }
    }
}

/* What a GPU takes in a container, of all the packs that were accepted; kind 0 is for nothing. */
static archsplit_target found_for(const struct survey *survey, uint32_t container,
                                  struct capability capability) {
    archsplit_target best = {0};
    for (uint32_t i = 0; i < survey->loader->count; i++) {
        const struct candidate *candidate = &survey->loader->candidates[i];
        if (survey_accepts(survey, i)) {
            improve(survey, candidate, &candidate->pack, container, capability, &best);
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

void service_wanted(const struct survey *survey, uint32_t container, struct wanted *wanted) {
    wanted->all = survey->machine.state == ARCHSPLIT_DRIVER_FAILED;
    wanted->count = 0;
    for (uint32_t i = 0; i < survey->machine.device_count; i++) {
        archsplit_target best = found_for(survey, container, survey->machine.devices[i].capability);
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

void service_count(const struct survey *survey, struct capability capability,
                   archsplit_service *service) {
    const struct pack *table = &survey->loader->table;
    *service = (archsplit_service){0};
    for (uint32_t i = 0; i < table->head.container_count; i++) {
        archsplit_target ideal = {0};
        improve(survey, NULL, table, i, capability, &ideal);
        archsplit_target found = found_for(survey, i, capability);
        uint32_t spare = pack_container(table, i)->flags & ARCHSPLIT_CONTAINER_SPARE;
        if (ideal.kind != 0 && (found.kind != 0 || spare == 0)) {
            count(service, capability, &ideal, &found);
        }
    }
}

static bool packs_are_native(const struct survey *survey, struct capability capability) {
    archsplit_service service;
    service_count(survey, capability, &service);
    return service.missing == 0 && service.ptx == 0 && service.native + service.older_minor > 0;
}

bool survey_is_native(const struct survey *survey, struct capability capability) {
    if (survey->loader->has_table) {
        return packs_are_native(survey, capability);
    }
    archsplit_choice choice = {0};
    return survey_choose(survey, capability, &choice) && choice.target.kind == ARCHSPLIT_KIND_SASS;
}

archsplit_status archsplit_loader_service(const archsplit_loader *loader, uint32_t major,
                                          uint32_t minor, archsplit_service *service) {
    if (!loader->has_table) {
        return loader_bad_argument(
            "only a core with device packs is served container by container");
    }
    const struct survey *survey;
    archsplit_service known = {0};
    archsplit_status status = survey_full(loader, &survey);
    if (status == ARCHSPLIT_OK) {
        service_count(survey, (struct capability){major, minor}, &known);
    }
    return status == ARCHSPLIT_OK ? loader_give(service, &known, sizeof known) : status;
}
