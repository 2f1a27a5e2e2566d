#include "open.h"

#include <stdio.h>
#include <string.h>

#include "candidates.h"
#include "detection.h"
#include "error.h"
#include "object.h"
#include "trace.h"

/* Set the error: no plugin serves `gpu`. List each candidate with its reason. */
static archsplit_status no_plugin(const struct device_state *state, const char *gpu) {
    const archsplit_loader *loader = state->loader;
    error_set("no plugin of %s %s serves %s", loader->identity.package, loader->identity.version,
              gpu);
    if (loader->count == 0) {
        error_append("; no plugin was found");
    }
    for (uint32_t i = 0; i < loader->count; i++) {
        const struct candidate *candidate = &loader->candidates[i];
        error_append_line("%s", candidate->path);
        if (!state_accepts(state, i)) {
            error_append(" %s", state_reason(state, i));
            continue;
        }
        error_append(" serves other GPUs:");
        for (uint32_t j = 0; j < candidate->descriptor.target_count; j++) {
            const archsplit_target *target = &candidate->descriptor.targets[j];
            error_append(" %s%s", target_name(target).text,
                         state_can_load(state, candidate, target) ? ""
                                                                  : " (newer than the driver)");
        }
    }
    return ARCHSPLIT_NO_PLUGIN;
}

archsplit_status open_choose(const archsplit_loader *loader, struct capability capability,
                             archsplit_choice *choice) {
    const struct device_state *state;
    archsplit_status status = detection_for_capability(loader, capability, &state);
    if (status == ARCHSPLIT_OK && !state_choose(state, capability, choice)) {
        char gpu[64];
        snprintf(gpu, sizeof gpu, "capability %u.%u", capability.major, capability.minor);
        status = no_plugin(state, gpu);
    }
    return status;
}

static archsplit_status choose_for_device(const archsplit_loader *loader, uint32_t device,
                                          archsplit_choice *choice) {
    const struct device_state *state;
    const struct device *found;
    archsplit_status status = detection_for_device(loader, device, &state);
    if (status == ARCHSPLIT_OK) {
        status = state_find_device(state, device, &found);
    }
    if (status == ARCHSPLIT_OK && !state_choose(state, found->capability, choice)) {
        char gpu[192];
        snprintf(gpu, sizeof gpu, "device %u, %s (capability %u.%u)", device, found->name,
                 found->capability.major, found->capability.minor);
        status = no_plugin(state, gpu);
    }
    return status;
}

/* True if a loaded object has the descriptor that was accepted, and comes from this file. */
static bool is_accepted(const struct os_object *object, const struct candidate *candidate,
                        const struct os_file *file) {
    struct descriptor mapped;
    uint32_t length = 0;
    const uint8_t *note = object_note(object, ARCHSPLIT_NOTE_NAME, ARCHSPLIT_NOTE_TYPE, &length);
    memset(&mapped, 0, sizeof mapped);
    return note != NULL &&
           descriptor_decode(note, length, ARCHSPLIT_SHAPE_LIBRARY, &mapped) ==
               ARCHSPLIT_ACCEPTED &&
           memcmp(&mapped, &candidate->descriptor, sizeof mapped) == 0 &&
           os_is_mapped_from(object, file);
}

/* The file was checked through a file descriptor, but ld.so opens it by path. So it may map another
 * file: one that replaced it meanwhile, or one that is already loaded under this path or SONAME.
 *
 * A path in /proc/self/fd would close that gap, and was tried. The libraries that a plugin needs
 * from $ORIGIN are not found; dladdr returns that path, so a plugin can't find its own files; gdb
 * opens that number in its own process, and hangs; and ld.so compares names first, so a reused
 * number returns the previous plugin. By path, with two files that were exchanged without
 * pause, the constructor of the wrong file ran in 4 of 2,000 openings, and no symbol of it was
 * returned. Only users who may write the plugin can do that: see check_safe. */
static archsplit_status check_opened(const struct candidate *candidate, const struct os_file *file,
                                     void *plugin) {
    struct os_object object;
    if (os_library_object(plugin, &object) && is_accepted(&object, candidate, file)) {
        return ARCHSPLIT_OK;
    }
    error_set("%s is not what was loaded under its name: another file of this path or SONAME is in "
              "the process; start it again",
              candidate->path);
    return ARCHSPLIT_OPEN_FAILED;
}

static archsplit_status open_candidate(struct candidate *candidate, void **plugin) {
    *plugin = atomic_load(&candidate->plugin);
    if (*plugin != NULL) {
        return ARCHSPLIT_OK;
    }
    if (candidate->pack.metadata != NULL) {
        return error_bad_argument("a device pack can't be opened: it is grafted into its library");
    }
    struct os_file now;
    archsplit_status status = candidate_reopen(candidate, &now);
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    /* Racing threads get the same handle from dlopen, so either may be kept. */
    *plugin = os_library_open(candidate->path);
    status = *plugin != NULL ? check_opened(candidate, &now, *plugin) : ARCHSPLIT_OPEN_FAILED;
    os_close(&now);
    if (status != ARCHSPLIT_OK) {
        *plugin = NULL;
    }
    trace("%s %s", candidate->path, status == ARCHSPLIT_OK ? "was opened" : error_text());
    atomic_store(&candidate->plugin, *plugin);
    return status;
}

/* Open the plugin that was chosen, if one was: `status` is of the choice. */
static archsplit_status open_chosen(archsplit_loader *loader, archsplit_status status,
                                    const archsplit_choice *choice, void **plugin) {
    if (status != ARCHSPLIT_OK) {
        trace("%s", error_text());
        return status;
    }
    struct candidate *candidate = &loader->candidates[choice->candidate];
    trace("%s of %s is chosen", target_name(&choice->target).text, candidate->path);
    return open_candidate(candidate, plugin);
}

archsplit_status archsplit_loader_open(archsplit_loader *loader, uint32_t device, void **plugin) {
    archsplit_choice choice = {0};
    archsplit_status status = choose_for_device(loader, device, &choice);
    return open_chosen(loader, status, &choice, plugin);
}

archsplit_status archsplit_loader_open_for_capability(archsplit_loader *loader, uint32_t major,
                                                      uint32_t minor, void **plugin) {
    archsplit_choice choice = {0};
    archsplit_status status = open_choose(loader, (struct capability){major, minor}, &choice);
    return open_chosen(loader, status, &choice, plugin);
}
