/* Exported functions of plugin_loader.h that need no more than a few lines. The loader itself calls
 * no exported function: the loader of another core may be in this process, and an exported name may
 * be bound to its function. */
#include <stddef.h>
#include <string.h>

#include "coverage.h"
#include "create.h"
#include "detection.h"
#include "error.h"
#include "gpu_table.h"
#include "grafted_libraries.h"
#include "open.h"
#include "os.h"

/* Copy a struct as far as the caller's reaches; both begin with their size. */
static archsplit_status copy_out(void *to, const void *from, uint32_t known) {
    uint32_t size = 0;
    if (to != NULL) {
        memcpy(&size, to, sizeof size);
    }
    if (size < sizeof size) {
        return error_bad_argument("a struct is needed, with its size set");
    }
    size = size < known ? size : known;
    memcpy(to, from, size);
    memcpy(to, &size, sizeof size);
    return ARCHSPLIT_OK;
}

archsplit_status archsplit_loader_create(const archsplit_core *core, archsplit_loader **loader) {
    archsplit_status status = detection_check_setting();
    return status == ARCHSPLIT_OK ? loader_create(core, loader) : status;
}

uint32_t archsplit_loader_version(void) {
    return ARCHSPLIT_LOADER_VERSION;
}

void archsplit_loader_destroy(archsplit_loader *loader) {
    loader_destroy(loader);
}

archsplit_status archsplit_loader_summary(const archsplit_loader *loader,
                                          archsplit_summary *summary) {
    const struct device_state *state;
    if (detection_full(loader, &state) != ARCHSPLIT_OK) {
        return ARCHSPLIT_NO_MEMORY;
    }
    const struct machine *machine = &state->machine;
    const archsplit_summary known = {
        .driver_state = machine->state,
        .driver_reason = machine->reason,
        .driver_version = machine->driver_version,
        .cuda_version = machine->cuda_version,
        .device_count = machine->device_count,
        .candidate_count = loader->count,
        .note_count = machine->note_count,
    };
    return copy_out(summary, &known, sizeof known);
}

archsplit_status archsplit_loader_candidate(const archsplit_loader *loader, uint32_t index,
                                            archsplit_candidate *candidate) {
    if (index >= loader->count) {
        return error_bad_argument("no candidate has this number");
    }
    const struct candidate *found = &loader->candidates[index];
    const struct device_state *state = detection_now(loader);
    const archsplit_candidate known = {
        .verdict = state->verdicts[index].verdict,
        .path = found->path,
        .reason = state_reason(state, index),
        .package = found->descriptor.package,
        .version = found->descriptor.version,
        .targets = found->descriptor.targets,
        .target_count = found->descriptor.target_count,
        .cuda_version = found->descriptor.cuda_version,
    };
    return copy_out(candidate, &known, sizeof known);
}

/* True if a struct has fields beyond the capability, for which only NVML is reliable. */
static bool needs_nvml(const archsplit_device *device) {
    return device != NULL && device->size > offsetof(archsplit_device, nvml_index);
}

archsplit_status archsplit_loader_device(const archsplit_loader *loader, uint32_t index,
                                         archsplit_device *device) {
    const struct device *found;
    const struct device_state *state;
    archsplit_status status = needs_nvml(device) ? detection_full(loader, &state)
                                                 : detection_for_device(loader, index, &state);
    if (status == ARCHSPLIT_OK) {
        status = state_find_device(state, index, &found);
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
    return copy_out(device, &known, sizeof known);
}

const char *archsplit_loader_note(const archsplit_loader *loader, uint32_t index) {
    const struct device_state *state;
    bool is_known = detection_full(loader, &state) == ARCHSPLIT_OK;
    return is_known && index < state->machine.note_count ? state->machine.notes[index] : NULL;
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
        [ARCHSPLIT_UNKNOWN_TARGET] = "unknown-target",
    };
    return verdict < sizeof names / sizeof *names ? names[verdict] : "unknown";
}

archsplit_status archsplit_loader_choose(const archsplit_loader *loader, uint32_t major,
                                         uint32_t minor, archsplit_choice *choice) {
    archsplit_choice known = {0};
    archsplit_status status = open_choose(loader, (struct capability){major, minor}, &known);
    return status == ARCHSPLIT_OK ? copy_out(choice, &known, sizeof known) : status;
}

archsplit_status archsplit_loader_service(const archsplit_loader *loader, uint32_t major,
                                          uint32_t minor, archsplit_service *service) {
    if (!loader->has_packs) {
        return error_bad_argument("only a core with device packs is served container by container");
    }
    const struct device_state *state;
    archsplit_service known = {0};
    archsplit_status status = detection_full(loader, &state);
    if (status == ARCHSPLIT_OK) {
        coverage_count(state, (struct capability){major, minor}, &known);
    }
    return status == ARCHSPLIT_OK ? copy_out(service, &known, sizeof known) : status;
}

archsplit_status archsplit_process_service(const archsplit_loader *loader, const char *folder,
                                           uint32_t major, uint32_t minor,
                                           archsplit_service *service) {
    const struct device_state *state;
    archsplit_service known = {0};
    if (!loader->has_packs || folder == NULL) {
        return error_bad_argument("a core with device packs, and its folder, are needed");
    }
    archsplit_status status = detection_full(loader, &state);
    if (status == ARCHSPLIT_OK) {
        status = process_service(state, folder, (struct capability){major, minor}, &known);
    }
    return status == ARCHSPLIT_OK ? copy_out(service, &known, sizeof known) : status;
}

archsplit_status archsplit_process_container(const char *folder, uint32_t index,
                                             archsplit_grafted *grafted) {
    archsplit_grafted known = {0};
    archsplit_status status = folder != NULL ? process_container(folder, index, &known)
                                             : error_bad_argument("a folder is needed");
    return status == ARCHSPLIT_OK ? copy_out(grafted, &known, sizeof known) : status;
}

archsplit_status archsplit_plugin_symbol(void *plugin, const char *name, void **address) {
    *address = os_library_symbol(plugin, name);
    return *address != NULL ? ARCHSPLIT_OK : ARCHSPLIT_NO_SYMBOL;
}

const char *archsplit_last_error(void) {
    return error_text();
}

int32_t archsplit_best_target(uint32_t major, uint32_t minor, const archsplit_target *targets,
                              uint32_t count) {
    int32_t best = -1;
    for (uint32_t i = 0; i < count; i++) {
        if (target_runs_on(&targets[i], (struct capability){major, minor}) &&
            (best < 0 || target_is_better(&targets[i], &targets[best]))) {
            best = (int32_t)i;
        }
    }
    return best;
}

const char *archsplit_known_capability(uint32_t index, uint32_t *major, uint32_t *minor) {
    const struct gpu_row *row = gpu_table_row(index);
    if (row == NULL) {
        return NULL;
    }
    *major = row->major;
    *minor = row->minor;
    return row->display;
}
