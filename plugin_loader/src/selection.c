#include "selection.h"

#include <stdio.h>
#include <stdlib.h>

#include "error.h"
#include "coverage.h"

static void destroy(struct survey *survey) {
    for (uint32_t i = 0; survey != NULL && i < survey->loader->count; i++) {
        free(survey->rulings[i].reason);
    }
    free(survey != NULL ? survey->rulings : NULL);
    free(survey);
}

/* A survey of nothing yet. */
static struct survey *create(const archsplit_loader *loader) {
    struct survey *survey = calloc(1, sizeof *survey);
    struct ruling *rulings = calloc((size_t)loader->count + 1, sizeof *rulings);
    if (survey == NULL || rulings == NULL) {
        free(survey);
        free(rulings);
        return NULL;
    }
    survey->loader = loader;
    survey->rulings = rulings;
    for (uint32_t i = 0; i < loader->count; i++) {
        rulings[i].verdict = loader->candidates[i].verdict;
    }
    return survey;
}

/* The survey, settled; or NULL, and it is gone. */
static struct survey *settled(struct survey *survey) {
    if (survey != NULL && survey_settle(survey) == ARCHSPLIT_OK) {
        return survey;
    }
    destroy(survey);
    return NULL;
}

static struct survey *ask(const archsplit_loader *loader) {
    struct survey *survey = create(loader);
    if (survey != NULL) {
        machine_detect(&survey->machine);
    }
    return settled(survey);
}

static struct survey *ask_nobody(const archsplit_loader *loader) {
    struct survey *survey = create(loader);
    if (survey != NULL) {
        machine_stop(&survey->machine, ARCHSPLIT_DRIVER_NOT_ASKED, "devices were not asked for");
    }
    return settled(survey);
}

/* Whether NVML could say nothing that changes what is loaded, after a quick look at GPUs that are
 * all of one capability. The driver is at least as good as it was taken for, so machine code that
 * it can load then is what it would be given in any case. */
static bool is_enough(const struct survey *survey) {
    for (uint32_t i = 0; i < survey->loader->count; i++) {
        if (survey->rulings[i].verdict == ARCHSPLIT_DRIVER_TOO_OLD) {
            return false;
        }
    }
    return survey_is_native(survey, survey->machine.devices[0].capability);
}

/* A survey by a quick look; NULL where that is not enough, or there is no memory. */
static struct survey *look(const archsplit_loader *loader) {
    struct survey *survey = loader->count > 0 ? create(loader) : NULL;
    bool certain = survey != NULL && machine_quick_look(&survey->machine) &&
                   survey_settle(survey) == ARCHSPLIT_OK && is_enough(survey);
    if (!certain) {
        destroy(survey);
    }
    return certain ? survey : NULL;
}

archsplit_status surveys_create(archsplit_loader *loader, bool devices) {
    struct surveys *surveys = loader->surveys = calloc(1, sizeof *surveys);
    if (surveys == NULL) {
        return loader_no_memory();
    }
    surveys->quick = devices ? look(loader) : NULL;
    struct survey *full = NULL;
    if (surveys->quick == NULL) {
        full = devices ? ask(loader) : ask_nobody(loader);
    }
    atomic_init(&surveys->full, full);
    return surveys->quick != NULL || full != NULL ? ARCHSPLIT_OK : loader_no_memory();
}

void surveys_destroy(struct surveys *surveys) {
    if (surveys != NULL) {
        destroy(surveys->quick);
        destroy(atomic_load(&surveys->full));
        free(surveys);
    }
}

const struct survey *survey_now(const archsplit_loader *loader) {
    const struct survey *full = atomic_load(&loader->surveys->full);
    return full != NULL ? full : loader->surveys->quick;
}

/* Say in NVML's answer that loading did not wait for it. */
static void note_quick_look(struct machine *machine, const struct machine *quick) {
    struct capability taken = quick->devices[0].capability;
    bool agreed = machine->state == ARCHSPLIT_DRIVER_READY;
    for (uint32_t i = 0; i < machine->device_count; i++) {
        struct capability told = machine->devices[i].capability;
        agreed = agreed && told.major == taken.major && told.minor == taken.minor;
    }
    machine_note(machine,
                 "loading does not ask NVML here: by /proc/driver/nvidia, all GPUs are of "
                 "capability %u.%u%s",
                 taken.major, taken.minor, agreed ? "" : ", and NVML says otherwise");
}

archsplit_status survey_full(const archsplit_loader *loader, const struct survey **survey) {
    struct surveys *surveys = loader->surveys;
    struct survey *full = atomic_load(&surveys->full);
    if (full == NULL) {
        struct survey *own = ask(loader);
        if (own == NULL) {
            return loader_no_memory();
        }
        note_quick_look(&own->machine, &surveys->quick->machine);
        if (atomic_compare_exchange_strong(&surveys->full, &full, own)) {
            full = own;
        } else {
            destroy(own);
        }
    }
    *survey = full;
    return ARCHSPLIT_OK;
}

archsplit_status survey_to_choose(const archsplit_loader *loader, struct capability capability,
                                  const struct survey **survey) {
    *survey = survey_now(loader);
    bool enough = *survey != loader->surveys->quick || survey_is_native(*survey, capability);
    return enough ? ARCHSPLIT_OK : survey_full(loader, survey);
}

archsplit_status survey_with_device(const archsplit_loader *loader, uint32_t index,
                                    const struct survey **survey) {
    *survey = survey_now(loader);
    bool is_there = index < (*survey)->machine.device_count;
    return is_there ? ARCHSPLIT_OK : survey_full(loader, survey);
}

bool survey_accepts(const struct survey *survey, uint32_t candidate) {
    return survey->rulings[candidate].verdict == ARCHSPLIT_ACCEPTED;
}

const char *survey_reason(const struct survey *survey, uint32_t candidate) {
    const char *own = survey->rulings[candidate].reason;
    const char *read = survey->loader->candidates[candidate].reason;
    return own != NULL ? own : read != NULL ? read : "";
}

archsplit_status survey_find_device(const struct survey *survey, uint32_t index,
                                    const struct device **device) {
    const struct machine *machine = &survey->machine;
    if (machine->state != ARCHSPLIT_DRIVER_READY) {
        detail_set("there is no device %u: %s", index, machine->reason);
        return ARCHSPLIT_NO_DEVICE;
    }
    if (index >= machine->device_count) {
        detail_set("there is no device %u: CUDA shows %u to this process, counted from 0", index,
                   machine->device_count);
        return ARCHSPLIT_NO_DEVICE;
    }
    *device = &machine->devices[index];
    return ARCHSPLIT_OK;
}
