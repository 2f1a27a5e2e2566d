/* Tell what a loader found: the structs of plugin_loader.h. */
#include <stddef.h>
#include <string.h>

#include "selection.h"

/* Copy a struct as far as the caller's reaches; both begin with their size. */
archsplit_status loader_give(void *to, const void *from, uint32_t known) {
    uint32_t size = 0;
    if (to != NULL) {
        memcpy(&size, to, sizeof size);
    }
    if (size < sizeof size) {
        return loader_bad_argument("a struct is needed, with its size set");
    }
    size = size < known ? size : known;
    memcpy(to, from, size);
    memcpy(to, &size, sizeof size);
    return ARCHSPLIT_OK;
}

archsplit_status archsplit_loader_summary(const archsplit_loader *loader,
                                          archsplit_summary *summary) {
    const struct survey *survey;
    if (survey_full(loader, &survey) != ARCHSPLIT_OK) {
        return ARCHSPLIT_NO_MEMORY;
    }
    const struct machine *machine = &survey->machine;
    const archsplit_summary known = {
        .driver_state = machine->state,
        .driver_reason = machine->reason,
        .driver_version = machine->driver_version,
        .cuda_version = machine->cuda_version,
        .device_count = machine->device_count,
        .candidate_count = loader->count,
        .note_count = machine->note_count,
    };
    return loader_give(summary, &known, sizeof known);
}

archsplit_status archsplit_loader_candidate(const archsplit_loader *loader, uint32_t index,
                                            archsplit_candidate *candidate) {
    if (index >= loader->count) {
        return loader_bad_argument("there is no candidate of this number");
    }
    const struct candidate *found = &loader->candidates[index];
    const struct survey *survey = survey_now(loader);
    const archsplit_candidate known = {
        .verdict = survey->rulings[index].verdict,
        .path = found->path,
        .reason = survey_reason(survey, index),
        .package = found->descriptor.package,
        .version = found->descriptor.version,
        .targets = found->descriptor.targets,
        .target_count = found->descriptor.target_count,
        .cuda_version = found->descriptor.cuda_version,
    };
    return loader_give(candidate, &known, sizeof known);
}

/* Whether a struct reaches beyond the capability, to what only NVML tells for certain. */
static bool wants_more(const archsplit_device *device) {
    return device != NULL && device->size > offsetof(archsplit_device, nvml_index);
}

archsplit_status archsplit_loader_device(const archsplit_loader *loader, uint32_t index,
                                         archsplit_device *device) {
    const struct device *found;
    const struct survey *survey;
    archsplit_status status = wants_more(device) ? survey_full(loader, &survey)
                                                 : survey_with_device(loader, index, &survey);
    if (status == ARCHSPLIT_OK) {
        status = survey_find_device(survey, index, &found);
    }
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    const archsplit_device known = {
        .major = found->capability.major,
        .minor = found->capability.minor,
        .nvml_index = found->nvml_index,
        .name = found->name,
        .uuid = found->uuid,
        .pci_bus_id = found->pci_bus_id,
    };
    return loader_give(device, &known, sizeof known);
}

const char *archsplit_loader_note(const archsplit_loader *loader, uint32_t index) {
    const struct survey *survey;
    bool is_known = survey_full(loader, &survey) == ARCHSPLIT_OK;
    return is_known && index < survey->machine.note_count ? survey->machine.notes[index] : NULL;
}

const char *archsplit_verdict_name(uint32_t verdict) {
    static const char *const names[] = {
        [ARCHSPLIT_ACCEPTED] = "accepted",
        [ARCHSPLIT_SHADOWED] = "shadowed",
        [ARCHSPLIT_UNREADABLE] = "unreadable",
        [ARCHSPLIT_MISSING] = "missing",
        [ARCHSPLIT_NOT_ELF] = "not-elf",
        [ARCHSPLIT_WRONG_MACHINE] = "wrong-machine",
        [ARCHSPLIT_TRUNCATED] = "truncated",
        [ARCHSPLIT_NO_DESCRIPTOR] = "no-descriptor",
        [ARCHSPLIT_MALFORMED] = "malformed",
        [ARCHSPLIT_WRONG_CONTRACT] = "wrong-contract",
        [ARCHSPLIT_WRONG_SHAPE] = "wrong-shape",
        [ARCHSPLIT_WRONG_PACKAGE] = "wrong-package",
        [ARCHSPLIT_WRONG_VERSION] = "wrong-version",
        [ARCHSPLIT_WRONG_BUILD] = "wrong-build",
        [ARCHSPLIT_WRONG_INTERFACE] = "wrong-interface",
        [ARCHSPLIT_DRIVER_TOO_OLD] = "driver-too-old",
        [ARCHSPLIT_UNSAFE] = "unsafe",
        [ARCHSPLIT_NOT_PACK] = "not-pack",
        [ARCHSPLIT_DAMAGED] = "damaged",
    };
    return verdict < sizeof names / sizeof *names ? names[verdict] : "unknown";
}
