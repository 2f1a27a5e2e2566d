/* Make a loader; choose and open plugins. */
#define _POSIX_C_SOURCE 200809L /* strdup */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "detail.h"
#include "loader.h"

archsplit_status loader_no_memory(void) {
    detail_set("out of memory");
    return ARCHSPLIT_NO_MEMORY;
}

archsplit_status loader_bad_argument(const char *what) {
    detail_set("%s", what);
    return ARCHSPLIT_BAD_ARGUMENT;
}

static bool parse_hash(const char *text, uint8_t hash[32]) {
    if (text == NULL || strlen(text) != 64 || strspn(text, "0123456789abcdefABCDEF") != 64) {
        return false;
    }
    for (int i = 0; i < 32; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};
        hash[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return true;
}

/* Who the core is, when its own table says it. */
static archsplit_status take_table(archsplit_loader *loader, const char *path) {
    struct os_file file;
    struct descriptor descriptor;
    archsplit_verdict verdict = ARCHSPLIT_UNREADABLE;
    if (os_open(path, &file) == 0) {
        verdict = pack_read(&file, true, &loader->table, &descriptor);
        os_close(&file);
    }
    if (verdict != ARCHSPLIT_ACCEPTED) {
        detail_append(" (%s: the core is damaged, install it again)", path);
        return ARCHSPLIT_BAD_ARGUMENT;
    }
    loader->has_table = true;
    memcpy(loader->build_id, descriptor.build_id, sizeof loader->build_id);
    memcpy(loader->interface_hash, descriptor.interface_hash, sizeof loader->interface_hash);
    loader->package = strdup(descriptor.package);
    loader->version = strdup(descriptor.version);
    loader->library = strdup(ARCHSPLIT_PACK_FILE);
    bool complete = loader->package && loader->version && loader->library;
    return complete ? ARCHSPLIT_OK : loader_no_memory();
}

static archsplit_status take_core(archsplit_loader *loader, const archsplit_core *core) {
    if (core->table != NULL) {
        return take_table(loader, core->table);
    }
    if (core->package == NULL || core->version == NULL || core->library == NULL) {
        return loader_bad_argument("a core needs a package, a version and a library");
    }
    if (!parse_hash(core->build_id, loader->build_id) ||
        !parse_hash(core->interface_hash, loader->interface_hash)) {
        return loader_bad_argument(
            "a core's build_id and interface_hash are 64 hexadecimal digits");
    }
    loader->package = strdup(core->package);
    loader->version = strdup(core->version);
    loader->library = strdup(core->library);
    bool complete = loader->package && loader->version && loader->library;
    return complete ? ARCHSPLIT_OK : loader_no_memory();
}

static archsplit_status fill(archsplit_loader *loader, const archsplit_core *core) {
    archsplit_status status = take_core(loader, core);
    if (status == ARCHSPLIT_OK) {
        status = candidates_find(loader, core);
    }
    if (status == ARCHSPLIT_OK && (core->flags & ARCHSPLIT_SKIP_DEVICES) == 0) {
        machine_detect(&loader->machine);
    } else {
        loader->machine.state = ARCHSPLIT_DRIVER_NOT_ASKED;
        snprintf(loader->machine.reason, MAX_NOTE, "devices were not asked for");
    }
    if (status == ARCHSPLIT_OK) {
        status = candidates_settle(loader);
    }
    return status;
}

archsplit_status archsplit_loader_create(const archsplit_core *core, archsplit_loader **loader) {
    if (core == NULL || loader == NULL) {
        return loader_bad_argument("a core, and where to put the loader, are needed");
    }
    archsplit_core known = {0};
    memcpy(&known, core, core->size < sizeof known ? core->size : sizeof known);
    *loader = calloc(1, sizeof **loader);
    if (*loader == NULL) {
        return loader_no_memory();
    }
    archsplit_status status = fill(*loader, &known);
    if (status != ARCHSPLIT_OK) {
        archsplit_loader_destroy(*loader);
        *loader = NULL;
    }
    return status;
}

void archsplit_loader_destroy(archsplit_loader *loader) {
    if (loader == NULL) {
        return;
    }
    for (uint32_t i = 0; i < loader->count; i++) {
        free(loader->candidates[i].path);
        free(loader->candidates[i].reason);
        pack_free(&loader->candidates[i].pack);
    }
    pack_free(&loader->table);
    free(loader->candidates);
    free(loader->package);
    free(loader->version);
    free(loader->library);
    free(loader);
}

archsplit_status loader_find_device(const archsplit_loader *loader, uint32_t index,
                                    const struct device **device) {
    const struct machine *machine = &loader->machine;
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

/* What there is instead of a plugin that serves `whom`. */
static archsplit_status no_plugin(const archsplit_loader *loader, const char *whom) {
    detail_set("no plugin of %s %s serves %s", loader->package, loader->version, whom);
    if (loader->count == 0) {
        detail_append("; no plugin was found");
    }
    for (uint32_t i = 0; i < loader->count; i++) {
        const struct candidate *candidate = &loader->candidates[i];
        detail_append("\n  %s", candidate->path);
        if (candidate->verdict != ARCHSPLIT_ACCEPTED) {
            detail_append(" %s", candidate->reason);
            continue;
        }
        detail_append(" serves other GPUs:");
        for (uint32_t j = 0; j < candidate->descriptor.target_count; j++) {
            const archsplit_target *target = &candidate->descriptor.targets[j];
            detail_append(" %s%s", target_name(target).text,
                          candidate_driver_knows(loader, candidate, target)
                              ? ""
                              : " (newer than the driver)");
        }
    }
    return ARCHSPLIT_NO_PLUGIN;
}

static archsplit_status choose(const archsplit_loader *loader, struct capability capability,
                               const char *whom, archsplit_choice *choice) {
    const archsplit_target *best = NULL;
    for (uint32_t i = 0; i < loader->count; i++) {
        const struct candidate *candidate = &loader->candidates[i];
        for (uint32_t j = 0; j < candidate->descriptor.target_count; j++) {
            const archsplit_target *target = &candidate->descriptor.targets[j];
            if (candidate->verdict == ARCHSPLIT_ACCEPTED && target_runs_on(target, capability) &&
                candidate_driver_knows(loader, candidate, target) &&
                (best == NULL || target_is_better(target, best))) {
                best = target;
                choice->candidate = i;
                choice->target = *target;
            }
        }
    }
    return best != NULL ? ARCHSPLIT_OK : no_plugin(loader, whom);
}

static archsplit_status choose_capability(const archsplit_loader *loader,
                                          struct capability capability, archsplit_choice *choice) {
    char whom[64];
    snprintf(whom, sizeof whom, "capability %u.%u", capability.major, capability.minor);
    return choose(loader, capability, whom, choice);
}

archsplit_status archsplit_loader_choose(const archsplit_loader *loader, uint32_t major,
                                         uint32_t minor, archsplit_choice *choice) {
    archsplit_choice known = {0};
    archsplit_status status = choose_capability(loader, (struct capability){major, minor}, &known);
    return status == ARCHSPLIT_OK ? loader_give(choice, &known, sizeof known) : status;
}

/* Open a candidate's file again, if it is still the one that was read. */
static archsplit_status reopen(const struct candidate *candidate, struct os_file *now) {
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
    archsplit_status status = reopen(candidate, &now);
    if (status == ARCHSPLIT_OK) {
        candidate->pack.bytes = os_map(&now);
        os_close(&now);
        status = candidate->pack.bytes != NULL ? ARCHSPLIT_OK : ARCHSPLIT_OPEN_FAILED;
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
    archsplit_status status = reopen(candidate, &now);
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    os_close(&now);
    /* Racing threads get the same handle from dlopen, so either may be kept. */
    *plugin = os_library_open(candidate->path);
    atomic_store(&candidate->plugin, *plugin);
    return *plugin != NULL ? ARCHSPLIT_OK : ARCHSPLIT_OPEN_FAILED;
}

archsplit_status archsplit_loader_open(archsplit_loader *loader, uint32_t device, void **plugin) {
    const struct device *found;
    archsplit_choice choice;
    archsplit_status status = loader_find_device(loader, device, &found);
    if (status == ARCHSPLIT_OK) {
        char whom[192];
        snprintf(whom, sizeof whom, "device %u, %s (capability %u.%u)", device, found->name,
                 found->capability.major, found->capability.minor);
        status = choose(loader, found->capability, whom, &choice);
    }
    return status == ARCHSPLIT_OK ? open_candidate(&loader->candidates[choice.candidate], plugin)
                                  : status;
}

archsplit_status archsplit_loader_open_for_capability(archsplit_loader *loader, uint32_t major,
                                                      uint32_t minor, void **plugin) {
    archsplit_choice choice;
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
