#define _POSIX_C_SOURCE 200809L /* strdup */

#include "device_state.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "trace.h"
#include "zstd.h"

void state_destroy(struct device_state *state) {
    for (uint32_t i = 0; state != NULL && i < state->loader->count; i++) {
        free(state->verdicts[i].reason);
    }
    free(state != NULL ? state->verdicts : NULL);
    free(state);
}

struct device_state *state_create(const archsplit_loader *loader) {
    struct device_state *state = calloc(1, sizeof *state);
    struct verdict *verdicts = calloc((size_t)loader->count + 1, sizeof *verdicts);
    if (state == NULL || verdicts == NULL) {
        free(state);
        free(verdicts);
        return NULL;
    }
    state->loader = loader;
    state->verdicts = verdicts;
    for (uint32_t i = 0; i < loader->count; i++) {
        verdicts[i].verdict = loader->candidates[i].verdict;
    }
    return state;
}

bool state_accepts(const struct device_state *state, uint32_t candidate) {
    return state->verdicts[candidate].verdict == ARCHSPLIT_ACCEPTED;
}

const char *state_reason(const struct device_state *state, uint32_t candidate) {
    const char *reason = state->verdicts[candidate].reason;
    reason = reason != NULL ? reason : state->loader->candidates[candidate].reason;
    return reason != NULL ? reason : "";
}

bool state_can_load(const struct device_state *state, const struct candidate *candidate,
                    const archsplit_target *target) {
    return target_can_load(target, candidate->descriptor.cuda_version, state->machine.cuda_version);
}

static bool driver_knows_any(const struct device_state *state, const struct candidate *candidate) {
    for (uint32_t i = 0; i < candidate->descriptor.target_count; i++) {
        if (state_can_load(state, candidate, &candidate->descriptor.targets[i])) {
            return true;
        }
    }
    return false;
}

/* An earlier accepted candidate that has this target too, or NULL. */
static const struct candidate *earlier_with(const struct device_state *state, uint32_t index,
                                            const archsplit_target *target) {
    for (uint32_t i = 0; i < index; i++) {
        const struct candidate *other = &state->loader->candidates[i];
        for (uint32_t j = 0; j < other->descriptor.target_count; j++) {
            if (state_accepts(state, i) && target_equals(&other->descriptor.targets[j], target)) {
                return other;
            }
        }
    }
    return NULL;
}

static archsplit_verdict check_shadow(const struct device_state *state, uint32_t index) {
    const struct candidate *candidate = &state->loader->candidates[index], *other = NULL;
    for (uint32_t i = 0; i < candidate->descriptor.target_count; i++) {
        other = earlier_with(state, index, &candidate->descriptor.targets[i]);
        if (other == NULL) {
            return ARCHSPLIT_ACCEPTED;
        }
    }
    error_set("is not used: %s has the same target and comes first", other->path);
    return ARCHSPLIT_SHADOWED;
}

/* Packs may have images in common, and each container finds its own; but the same pack in a second
 * folder would only be merged with itself. */
static archsplit_verdict check_copy(const struct device_state *state, uint32_t index) {
    const struct candidate *candidate = &state->loader->candidates[index];
    for (uint32_t i = 0; i < index; i++) {
        const struct candidate *other = &state->loader->candidates[i];
        if (state_accepts(state, i) && memcmp(other->pack.head.digest, candidate->pack.head.digest,
                                              sizeof other->pack.head.digest) == 0) {
            error_set("is not used: %s is the same pack and comes first", other->path);
            return ARCHSPLIT_SHADOWED;
        }
    }
    return ARCHSPLIT_ACCEPTED;
}

#define CUDA(version) (version) / 1000, (version) % 1000 / 10

/* Judge a pack whose images only later drivers can read. CUDA's own version is asked for: with the
 * compatibility libraries it is newer than NVML's. Without a driver there is nothing to judge. */
static archsplit_verdict check_compression(struct device_state *state, uint32_t index) {
    const struct candidate *candidate = &state->loader->candidates[index];
    uint32_t needed = candidate->pack.head.driver_version;
    uint32_t driver = needed > 0 ? libcuda_version() : 0;
    if (driver == 0 || driver >= needed) {
        if (driver != 0) {
            machine_note(&state->machine, "%s: the driver reads its zstd images", candidate->path);
        }
        return ARCHSPLIT_ACCEPTED;
    }
    if (!zstd_is_there()) {
        error_set("has zstd images, which drivers for CUDA %u.%u can't read; update the driver to "
                  "CUDA %u.%u%s",
                  CUDA(driver), CUDA(needed),
                  os_elevated() ? "" : ", or install libzstd (apt install libzstd1)");
        return ARCHSPLIT_DRIVER_TOO_OLD;
    }
    machine_note(
        &state->machine,
        "%s: its zstd images are unpacked by libzstd when a library is loaded, because the "
        "driver is for CUDA %u.%u, and reads them from %u.%u on",
        candidate->path, CUDA(driver), CUDA(needed));
    state->verdicts[index].needs_zstd = true;
    return ARCHSPLIT_ACCEPTED;
}

/* Judge a candidate that matches the core by the driver and by the other candidates. */
static archsplit_verdict check_usable(struct device_state *state, uint32_t index) {
    const struct candidate *candidate = &state->loader->candidates[index];
    if (driver_knows_any(state, candidate)) {
        archsplit_verdict verdict =
            state->loader->has_packs ? check_copy(state, index) : check_shadow(state, index);
        return verdict == ARCHSPLIT_ACCEPTED ? check_compression(state, index) : verdict;
    }
    uint32_t toolkit = candidate->descriptor.cuda_version, driver = state->machine.cuda_version;
    error_set("is built with CUDA %u.%u, but the driver (%s) supports CUDA up to %u.%u; update the "
              "driver",
              CUDA(toolkit), state->machine.driver_version, CUDA(driver));
    return ARCHSPLIT_DRIVER_TOO_OLD;
}

static archsplit_status set_verdict(struct device_state *state, uint32_t index,
                                    archsplit_verdict verdict) {
    if (verdict == ARCHSPLIT_ACCEPTED) {
        return ARCHSPLIT_OK;
    }
    struct verdict *judged = &state->verdicts[index];
    trace("%s %s", state->loader->candidates[index].path, error_text());
    judged->verdict = verdict;
    judged->reason = strdup(error_text());
    return judged->reason != NULL ? ARCHSPLIT_OK : error_no_memory();
}

archsplit_status state_judge(struct device_state *state) {
    archsplit_status status = ARCHSPLIT_OK;
    for (uint32_t i = 0; status == ARCHSPLIT_OK && i < state->loader->count; i++) {
        if (state_accepts(state, i)) {
            status = set_verdict(state, i, check_usable(state, i));
        }
    }
    return status;
}

bool state_choose(const struct device_state *state, struct capability capability,
                  archsplit_choice *choice) {
    const archsplit_target *best = NULL;
    for (uint32_t i = 0; i < state->loader->count; i++) {
        const struct candidate *candidate = &state->loader->candidates[i];
        for (uint32_t j = 0; j < candidate->descriptor.target_count; j++) {
            const archsplit_target *target = &candidate->descriptor.targets[j];
            if (state_accepts(state, i) && target_runs_on(target, capability) &&
                state_can_load(state, candidate, target) &&
                (best == NULL || target_is_better(target, best))) {
                best = target;
                choice->candidate = i;
                choice->target = *target;
            }
        }
    }
    return best != NULL;
}

archsplit_status state_find_device(const struct device_state *state, uint32_t index,
                                   const struct device **device) {
    const struct machine *machine = &state->machine;
    if (machine->state != ARCHSPLIT_DRIVER_READY) {
        error_set("no device %u: %s", index, machine->reason);
        return ARCHSPLIT_NO_DEVICE;
    }
    if (index >= machine->device_count) {
        error_set("no device %u: CUDA shows %u to this process, numbered from 0", index,
                  machine->device_count);
        return ARCHSPLIT_NO_DEVICE;
    }
    *device = &machine->devices[index];
    return ARCHSPLIT_OK;
}
