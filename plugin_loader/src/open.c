/* Choose a plugin, and open it. */
#include <stdio.h>

#include "error.h"
#include "selection.h"

/* What there is instead of a plugin that serves `whom`. */
static archsplit_status no_plugin(const struct survey *survey, const char *whom) {
    const archsplit_loader *loader = survey->loader;
    detail_set("no plugin of %s %s serves %s", loader->package, loader->version, whom);
    if (loader->count == 0) {
        detail_append("; no plugin was found");
    }
    for (uint32_t i = 0; i < loader->count; i++) {
        const struct candidate *candidate = &loader->candidates[i];
        detail_append("\n  %s", candidate->path);
        if (!survey_accepts(survey, i)) {
            detail_append(" %s", survey_reason(survey, i));
            continue;
        }
        detail_append(" serves other GPUs:");
        for (uint32_t j = 0; j < candidate->descriptor.target_count; j++) {
            const archsplit_target *target = &candidate->descriptor.targets[j];
            detail_append(
                " %s%s", target_name(target).text,
                survey_driver_knows(survey, candidate, target) ? "" : " (newer than the driver)");
        }
    }
    return ARCHSPLIT_NO_PLUGIN;
}

bool survey_choose(const struct survey *survey, struct capability capability,
                   archsplit_choice *choice) {
    const archsplit_target *best = NULL;
    for (uint32_t i = 0; i < survey->loader->count; i++) {
        const struct candidate *candidate = &survey->loader->candidates[i];
        for (uint32_t j = 0; j < candidate->descriptor.target_count; j++) {
            const archsplit_target *target = &candidate->descriptor.targets[j];
            if (survey_accepts(survey, i) && target_runs_on(target, capability) &&
                survey_driver_knows(survey, candidate, target) &&
                (best == NULL || target_is_better(target, best))) {
                best = target;
                choice->candidate = i;
                choice->target = *target;
            }
        }
    }
    return best != NULL;
}

static archsplit_status choose_capability(const archsplit_loader *loader,
                                          struct capability capability, archsplit_choice *choice) {
    const struct survey *survey;
    archsplit_status status = survey_to_choose(loader, capability, &survey);
    if (status == ARCHSPLIT_OK && !survey_choose(survey, capability, choice)) {
        char whom[64];
        snprintf(whom, sizeof whom, "capability %u.%u", capability.major, capability.minor);
        status = no_plugin(survey, whom);
    }
    return status;
}

archsplit_status archsplit_loader_choose(const archsplit_loader *loader, uint32_t major,
                                         uint32_t minor, archsplit_choice *choice) {
    archsplit_choice known = {0};
    archsplit_status status = choose_capability(loader, (struct capability){major, minor}, &known);
    return status == ARCHSPLIT_OK ? loader_give(choice, &known, sizeof known) : status;
}

archsplit_status candidate_reopen(const struct candidate *candidate, struct os_file *now) {
    if (os_open(candidate->path, now) != 0) {
        detail_append(" (%s)", candidate->path);
        return ARCHSPLIT_OPEN_FAILED;
    }
    if (os_unchanged(&candidate->file, now)) {
        return ARCHSPLIT_OK;
    }
    os_close(now);
    detail_set("%s changed since it was read; start again", candidate->path);
    return ARCHSPLIT_OPEN_FAILED;
}

archsplit_status candidate_map(struct candidate *candidate) {
    struct os_file now;
    if (candidate->pack.bytes != NULL) {
        return ARCHSPLIT_OK;
    }
    archsplit_status status = candidate_reopen(candidate, &now);
    if (status == ARCHSPLIT_OK) {
        candidate->pack.bytes = os_map(&now);
        os_close(&now);
        if (candidate->pack.bytes == NULL) {
            detail_append(" (%s)", candidate->path);
            status = ARCHSPLIT_OPEN_FAILED;
        }
    }
    return status;
}

static archsplit_status open_candidate(struct candidate *candidate, void **plugin) {
    *plugin = atomic_load(&candidate->plugin);
    if (*plugin != NULL) {
        return ARCHSPLIT_OK;
    }
    if (candidate->pack.front != NULL) {
        return loader_bad_argument("a device pack is put under its library, never opened");
    }
    struct os_file now;
    archsplit_status status = candidate_reopen(candidate, &now);
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    os_close(&now);
    /* Racing threads get the same handle from dlopen, so either may be kept. */
    *plugin = os_library_open(candidate->path);
    atomic_store(&candidate->plugin, *plugin);
    return *plugin != NULL ? ARCHSPLIT_OK : ARCHSPLIT_OPEN_FAILED;
}

static archsplit_status choose_device(const struct survey *survey, uint32_t device,
                                      archsplit_choice *choice) {
    const struct device *found;
    archsplit_status status = survey_find_device(survey, device, &found);
    if (status == ARCHSPLIT_OK && !survey_choose(survey, found->capability, choice)) {
        char whom[192];
        snprintf(whom, sizeof whom, "device %u, %s (capability %u.%u)", device, found->name,
                 found->capability.major, found->capability.minor);
        status = no_plugin(survey, whom);
    }
    return status;
}

archsplit_status archsplit_loader_open(archsplit_loader *loader, uint32_t device, void **plugin) {
    const struct survey *survey;
    archsplit_choice choice = {0};
    archsplit_status status = survey_with_device(loader, device, &survey);
    if (status == ARCHSPLIT_OK) {
        status = choose_device(survey, device, &choice);
    }
    return status == ARCHSPLIT_OK ? open_candidate(&loader->candidates[choice.candidate], plugin)
                                  : status;
}

archsplit_status archsplit_loader_open_for_capability(archsplit_loader *loader, uint32_t major,
                                                      uint32_t minor, void **plugin) {
    archsplit_choice choice = {0};
    archsplit_status status = choose_capability(loader, (struct capability){major, minor}, &choice);
    return status == ARCHSPLIT_OK ? open_candidate(&loader->candidates[choice.candidate], plugin)
                                  : status;
}

archsplit_status archsplit_plugin_symbol(void *plugin, const char *name, void **address) {
    *address = os_library_symbol(plugin, name);
    return *address != NULL ? ARCHSPLIT_OK : ARCHSPLIT_NO_SYMBOL;
}

const char *archsplit_last_error(void) {
    return detail_text();
}
