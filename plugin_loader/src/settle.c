/* What the driver, and the candidates among each other, make of those that match the core. */
#include "detail.h"
#include "loader.h"

bool candidate_driver_knows(const archsplit_loader *loader, const struct candidate *candidate,
                            const archsplit_target *target) {
    return target_driver_knows(target, candidate->descriptor.cuda_version,
                               loader->machine.cuda_version);
}

static bool driver_knows_any(const archsplit_loader *loader, const struct candidate *candidate) {
    for (uint32_t i = 0; i < candidate->descriptor.target_count; i++) {
        if (candidate_driver_knows(loader, candidate, &candidate->descriptor.targets[i])) {
            return true;
        }
    }
    return false;
}

/* An earlier accepted candidate that has this target too, or NULL. */
static const struct candidate *earlier_with(const archsplit_loader *loader, uint32_t index,
                                            const archsplit_target *target) {
    for (uint32_t i = 0; i < index; i++) {
        const struct candidate *other = &loader->candidates[i];
        for (uint32_t j = 0; j < other->descriptor.target_count; j++) {
            if (other->verdict == ARCHSPLIT_ACCEPTED &&
                target_equals(&other->descriptor.targets[j], target)) {
                return other;
            }
        }
    }
    return NULL;
}

static archsplit_verdict check_shadow(const archsplit_loader *loader, uint32_t index) {
    const struct candidate *candidate = &loader->candidates[index], *other = NULL;
    for (uint32_t i = 0; i < candidate->descriptor.target_count; i++) {
        other = earlier_with(loader, index, &candidate->descriptor.targets[i]);
        if (other == NULL) {
            return ARCHSPLIT_ACCEPTED;
        }
    }
    detail_set("is not used: %s has the same target and comes first", other->path);
    return ARCHSPLIT_SHADOWED;
}

/* What the driver and the other candidates make of one that matches the core. */
static archsplit_verdict check_use(const archsplit_loader *loader, uint32_t index) {
    const struct candidate *candidate = &loader->candidates[index];
    if (driver_knows_any(loader, candidate)) {
        /* Device packs may have images in common: each container finds its own. */
        return loader->has_table ? ARCHSPLIT_ACCEPTED : check_shadow(loader, index);
    }
    uint32_t toolkit = candidate->descriptor.cuda_version, driver = loader->machine.cuda_version;
    detail_set(
        "is built with CUDA %u.%u, but the driver (%s) supports CUDA up to %u.%u; update the "
        "driver",
        toolkit / 1000, toolkit % 1000 / 10, loader->machine.driver_version, driver / 1000,
        driver % 1000 / 10);
    return ARCHSPLIT_DRIVER_TOO_OLD;
}

archsplit_status candidates_settle(archsplit_loader *loader) {
    archsplit_status status = ARCHSPLIT_OK;
    for (uint32_t i = 0; status == ARCHSPLIT_OK && i < loader->count; i++) {
        if (loader->candidates[i].verdict == ARCHSPLIT_ACCEPTED) {
            status = candidate_judge(&loader->candidates[i], check_use(loader, i));
        }
    }
    return status;
}
