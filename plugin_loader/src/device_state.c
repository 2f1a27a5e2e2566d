/* What the driver, and the candidates among each other, make of those that match the core. */
#define _POSIX_C_SOURCE 200809L /* strdup */

#include <string.h>

#include "error.h"
#include "selection.h"

bool survey_driver_knows(const struct survey *survey, const struct candidate *candidate,
                         const archsplit_target *target) {
    return target_driver_knows(target, candidate->descriptor.cuda_version,
                               survey->machine.cuda_version);
}

static bool driver_knows_any(const struct survey *survey, const struct candidate *candidate) {
    for (uint32_t i = 0; i < candidate->descriptor.target_count; i++) {
        if (survey_driver_knows(survey, candidate, &candidate->descriptor.targets[i])) {
            return true;
        }
    }
    return false;
}

/* An earlier accepted candidate that has this target too, or NULL. */
static const struct candidate *earlier_with(const struct survey *survey, uint32_t index,
                                            const archsplit_target *target) {
    for (uint32_t i = 0; i < index; i++) {
        const struct candidate *other = &survey->loader->candidates[i];
        for (uint32_t j = 0; j < other->descriptor.target_count; j++) {
            if (survey_accepts(survey, i) && target_equals(&other->descriptor.targets[j], target)) {
                return other;
            }
        }
    }
    return NULL;
}

static archsplit_verdict check_shadow(const struct survey *survey, uint32_t index) {
    const struct candidate *candidate = &survey->loader->candidates[index], *other = NULL;
    for (uint32_t i = 0; i < candidate->descriptor.target_count; i++) {
        other = earlier_with(survey, index, &candidate->descriptor.targets[i]);
        if (other == NULL) {
            return ARCHSPLIT_ACCEPTED;
        }
    }
    detail_set("is not used: %s has the same target and comes first", other->path);
    return ARCHSPLIT_SHADOWED;
}

/* What the driver and the other candidates make of one that matches the core. */
static archsplit_verdict check_use(const struct survey *survey, uint32_t index) {
    const struct candidate *candidate = &survey->loader->candidates[index];
    if (driver_knows_any(survey, candidate)) {
        /* Device packs may have images in common: each container finds its own. */
        return survey->loader->has_table ? ARCHSPLIT_ACCEPTED : check_shadow(survey, index);
    }
    uint32_t toolkit = candidate->descriptor.cuda_version, driver = survey->machine.cuda_version;
    detail_set(
        "is built with CUDA %u.%u, but the driver (%s) supports CUDA up to %u.%u; update the "
        "driver",
        toolkit / 1000, toolkit % 1000 / 10, survey->machine.driver_version, driver / 1000,
        driver % 1000 / 10);
    return ARCHSPLIT_DRIVER_TOO_OLD;
}

static archsplit_status rule(struct survey *survey, uint32_t index, archsplit_verdict verdict) {
    if (verdict == ARCHSPLIT_ACCEPTED) {
        return ARCHSPLIT_OK;
    }
    struct ruling *ruling = &survey->rulings[index];
    ruling->verdict = verdict;
    ruling->reason = strdup(detail_text());
    return ruling->reason != NULL ? ARCHSPLIT_OK : loader_no_memory();
}

archsplit_status survey_settle(struct survey *survey) {
    archsplit_status status = ARCHSPLIT_OK;
    for (uint32_t i = 0; status == ARCHSPLIT_OK && i < survey->loader->count; i++) {
        if (survey_accepts(survey, i)) {
            status = rule(survey, i, check_use(survey, i));
        }
    }
    return status;
}
