/* To graft is to point the fatbin wrappers of a loaded library at the images of packs. A fatbin
 * wrapper, CUDA's __fatBinC_Wrapper_t, points at a container. The first part grafts one library;
 * the second finds the library for the stub that calls. grafted_libraries.c reports on the result.
 *
 * A wrapper is only changed in the stub's constructor, which runs in the same dlopen as the
 * constructors that register the wrapper. CUDA doesn't define when it reads a registered wrapper,
 * and has no function that reports it: a later change could come too late, without an error. So
 * each wrapper of a library is changed in that call, also one without code: it gets an empty
 * container of the loader. A second call for the library finds no wrapper that points at its own
 * empty container, and changes none. A pack that is installed later counts as late. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "candidates.h"
#include "cores.h"
#include "coverage.h"
#include "detection.h"
#include "diagnostics.h"
#include "error.h"
#include "grafted_libraries.h"
#include "object.h"
#include "trace.h"
#include "zstd.h"

enum { ALIGNMENT = 64 };

/* Containers that are built in memory: from the images of several packs, for a machine with several
 * GPUs; or from images that the driver can't read as they are. */
struct merged {
    uint8_t *memory; /* NULL while only the size is computed */
    size_t size;
};

static bool has_wanted(const struct pack *pack, const archsplit_pack_container *container,
                       const archsplit_target *target) {
    for (uint32_t i = 0; i < container->image_count; i++) {
        if (target_equals(&pack_image(pack, container->first_image + i)->target, target)) {
            return true;
        }
    }
    return false;
}

/* True if a pack has the container with all wanted targets, see coverage.h. */
static bool has_all_wanted(const struct candidate *candidate, uint32_t number,
                           const struct wanted *wanted) {
    const archsplit_pack_container *container = pack_find(&candidate->pack, number);
    bool all = container->offset != 0;
    for (uint32_t i = 0; all && i < wanted->count; i++) {
        all = has_wanted(&candidate->pack, container, &wanted->targets[i]);
    }
    return all;
}

/* A pack with all wanted images, or NULL; the only such pack if the GPUs are unknown. */
static struct candidate *sole_pack(const struct device_state *state, uint32_t number,
                                   const struct wanted *wanted) {
    struct candidate *sole = NULL;
    for (uint32_t i = 0; i < state->loader->count; i++) {
        struct candidate *candidate = &state->loader->candidates[i];
        if (!state_accepts(state, i) || !has_all_wanted(candidate, number, wanted)) {
            continue;
        }
        if (!wanted->all) {
            return candidate;
        }
        if (sole != NULL) {
            return NULL;
        }
        sole = candidate;
    }
    return sole;
}

/* The wanted image of all packs with the lowest number that is not below `number`, or NULL. */
static const archsplit_pack_image *next_image(const struct device_state *state, uint32_t container,
                                              const struct wanted *wanted, uint32_t number,
                                              struct candidate **holder) {
    const archsplit_pack_image *next = NULL;
    for (uint32_t i = 0; i < state->loader->count; i++) {
        struct candidate *candidate = &state->loader->candidates[i];
        if (!state_accepts(state, i)) {
            continue;
        }
        const archsplit_pack_container *from = pack_find(&candidate->pack, container);
        for (uint32_t j = 0; j < from->image_count; j++) {
            const archsplit_pack_image *image = pack_image(&candidate->pack, from->first_image + j);
            if (image->number >= number && (next == NULL || image->number < next->number) &&
                is_wanted(wanted, &image->target)) {
                next = image;
                *holder = candidate;
            }
        }
    }
    return next;
}

/* Append one container to the merged ones; `place` is NULL if no image of it is wanted. */
static archsplit_status merge(const struct device_state *state, uint32_t container,
                              const struct wanted *wanted, struct merged *merged, uint8_t **place) {
    size_t start = (merged->size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, size = CONTAINER_HEADER;
    struct candidate *holder = NULL;
    const archsplit_pack_image *image = next_image(state, container, wanted, 0, &holder);
    *place = NULL;
    if (image == NULL) {
        return ARCHSPLIT_OK;
    }
    for (; image != NULL;
         image = next_image(state, container, wanted, image->number + 1, &holder)) {
        archsplit_status status = candidate_map(holder);
        if (status != ARCHSPLIT_OK) {
            return status;
        }
        const uint8_t *bytes = holder->pack.bytes + image->offset;
        bool needs_zstd = state->verdicts[holder - state->loader->candidates].needs_zstd;
        uint64_t length = needs_zstd ? zstd_plain_size(bytes, image->size) : image->size;
        uint8_t *to = merged->memory != NULL ? merged->memory + start + size : NULL;
        if (length == 0 || (to != NULL && needs_zstd && !zstd_unpack(bytes, image->size, to))) {
            error_set("%s is damaged: its image at offset %" PRIu64
                      " can't be unpacked; install the plugin again",
                      holder->path, image->offset);
            return ARCHSPLIT_OPEN_FAILED;
        }
        if (to != NULL && !needs_zstd) {
            memcpy(to, bytes, (size_t)length);
        }
        size += (size_t)length;
    }
    if (merged->memory != NULL) {
        *place = merged->memory + start;
        pack_write_header(*place, size);
    }
    merged->size = start + size;
    return ARCHSPLIT_OK;
}

/* The targets of a container whose images the driver can load: of one pack's container as it is, or
 * of the wanted images of all packs. */
static archsplit_status set_targets(const struct device_state *state, const struct candidate *sole,
                                    uint32_t number, const struct wanted *wanted,
                                    struct grafted_container *grafted) {
    struct wanted found = {0};
    for (uint32_t i = 0; i < state->loader->count; i++) {
        const struct candidate *candidate = &state->loader->candidates[i];
        bool counts = sole == NULL ? state_accepts(state, i) : candidate == sole;
        const archsplit_pack_container *from = counts ? pack_find(&candidate->pack, number) : NULL;
        for (uint32_t j = 0; counts && j < from->image_count; j++) {
            const archsplit_target *target =
                &pack_image(&candidate->pack, from->first_image + j)->target;
            if ((sole != NULL || is_wanted(wanted, target)) && !is_wanted(&found, target) &&
                state_can_load(state, candidate, target) && found.count < ARCHSPLIT_MAX_TARGETS) {
                found.targets[found.count++] = *target;
            }
        }
    }
    return grafted_set_targets(grafted, found.targets, found.count) ? ARCHSPLIT_OK
                                                                    : error_no_memory();
}

/* A container as it lies in the one pack that has all of it. */
static archsplit_status map_container(struct candidate *sole, uint32_t number, uint8_t **place) {
    const archsplit_pack_container *container = pack_find(&sole->pack, number);
    archsplit_status status = candidate_map(sole);
    if (status == ARCHSPLIT_OK &&
        !pack_is_header(sole->pack.bytes + container->offset, container->size)) {
        error_set("%s is damaged: its container at offset %" PRIu64
                  " has another header; install the plugin again",
                  sole->path, container->offset);
        status = ARCHSPLIT_OPEN_FAILED;
    }
    if (status == ARCHSPLIT_OK) {
        *place = (uint8_t *)(uintptr_t)sole->pack.bytes + container->offset;
    }
    return status;
}

/* Find the code of one container, and set its targets. `place` is NULL if there is none, or if
 * only the size of its images is computed. */
static archsplit_status find_code(const struct device_state *state, uint32_t number,
                                  const struct wanted *wanted, struct merged *merged,
                                  struct grafted_container *grafted, uint8_t **place) {
    struct candidate *sole = sole_pack(state, number, wanted);
    if (sole != NULL && state->verdicts[sole - state->loader->candidates].needs_zstd) {
        sole = NULL;
    }
    archsplit_status status = sole == NULL ? merge(state, number, wanted, merged, place)
                                           : map_container(sole, number, place);
    if (status == ARCHSPLIT_OK && *place != NULL) {
        status = set_targets(state, sole, number, wanted, grafted);
    }
    return status;
}

/* Point one container's wrapper at its code. The first pass computes the size of `merged`, and
 * leaves containers to merge FAILED; the second pass, for which there may be no memory, serves
 * these. */
static archsplit_status serve(const struct device_state *state, uint32_t number,
                              const struct os_object *object, struct merged *merged,
                              struct grafted_container *grafted) {
    const archsplit_pack_container *row = pack_container(&state->loader->table, number);
    uint64_t *pointer = object_pointer(object, row->wrapper);
    grafted->wrapper = object->base + row->wrapper;
    if (pointer != NULL && grafted->data != 0 && *pointer == grafted->data) {
        return ARCHSPLIT_OK; /* by an earlier pass or call; CUDA may have read it */
    }
    grafted->data = 0;
    if (pointer == NULL || *pointer != object->base + row->address) {
        grafted->state = ARCHSPLIT_GRAFT_UNMATCHED;
        return ARCHSPLIT_OK;
    }
    grafted->state = ARCHSPLIT_GRAFT_EMPTY;
    struct wanted wanted;
    coverage_wanted(state, number, &wanted);
    if (!wanted.all && wanted.count == 0) {
        return ARCHSPLIT_OK;
    }
    uint8_t *place = NULL;
    size_t size = merged->size;
    archsplit_status status = find_code(state, number, &wanted, merged, grafted, &place);
    if (status != ARCHSPLIT_OK) {
        grafted->state = ARCHSPLIT_GRAFT_FAILED;
        trace("container %u gets no device code: %s", number, error_text());
    } else if (place != NULL) {
        *pointer = grafted->data = (uint64_t)(uintptr_t)place;
        grafted->state = ARCHSPLIT_GRAFT_SERVED;
    } else if (merged->size != size) {
        grafted->state = ARCHSPLIT_GRAFT_FAILED;
    }
    return status;
}

static archsplit_status serve_all(const struct device_state *state, const struct os_object *object,
                                  struct merged *merged, struct grafted_library *grafted) {
    archsplit_status status = ARCHSPLIT_OK;
    for (uint32_t i = 0; i < grafted->container_count; i++) {
        archsplit_status one =
            serve(state, grafted->first_container + i, object, merged, &grafted->containers[i]);
        status = one != ARCHSPLIT_OK ? one : status;
    }
    return status;
}

/* Point the wrappers that found no code at empty containers of the loader. */
static void point_at_empty(const struct os_object *object, struct grafted_library *grafted) {
    for (uint32_t i = 0; i < grafted->container_count; i++) {
        struct grafted_container *each = &grafted->containers[i];
        uint64_t *pointer = object_pointer(object, each->wrapper - object->base);
        if (each->data == 0 && each->state != ARCHSPLIT_GRAFT_UNMATCHED && pointer != NULL) {
            pack_write_header((uint8_t *)each->empty, CONTAINER_HEADER);
            *pointer = each->data = (uint64_t)(uintptr_t)each->empty;
        }
    }
}

static archsplit_status graft_library(const struct device_state *state,
                                      const struct os_object *object,
                                      struct grafted_library *grafted) {
    struct merged merged = {NULL, 0};
    archsplit_status status = serve_all(state, object, &merged, grafted);
    if (status != ARCHSPLIT_OK || merged.size == 0) {
        return status;
    }
    size_t size = merged.size;
    trace("%s: images are merged in %zu bytes of memory", grafted->name, size);
    merged = (struct merged){os_reserve(size), 0};
    if (merged.memory == NULL) {
        return ARCHSPLIT_NO_MEMORY;
    }
    status = serve_all(state, object, &merged, grafted);
    os_protect(merged.memory, size);
    return status;
}

static archsplit_status graft_object(const struct core *core, const archsplit_pack_library *library,
                                     const struct os_object *object, uint32_t *unmatched) {
    struct grafted_library *grafted =
        grafted_get(core->folder, &core->loader->table, library, object->base);
    if (grafted == NULL) {
        return error_no_memory();
    }
    archsplit_status status = graft_library(detection_now(core->loader), object, grafted);
    point_at_empty(object, grafted);
    grafted->is_loaded = true;
    *unmatched += grafted_count(grafted, ARCHSPLIT_GRAFT_UNMATCHED);
    trace("%s: %u of %u containers served, %u unmatched", grafted->name,
          grafted_count(grafted, ARCHSPLIT_GRAFT_SERVED), grafted->container_count,
          grafted_count(grafted, ARCHSPLIT_GRAFT_UNMATCHED));
    return status;
}

/* Graft each loaded library that needs the stub. */
static archsplit_status graft_all(const struct core *core, const archsplit_pack_library *library,
                                  const char *stub) {
    struct os_object *objects;
    size_t count = os_objects(&objects);
    archsplit_status status = objects != NULL ? ARCHSPLIT_OK : error_no_memory();
    uint32_t unmatched = 0;
    for (size_t i = 0; i < count && status == ARCHSPLIT_OK; i++) {
        if (object_needs(&objects[i], stub)) {
            status = graft_object(core, library, &objects[i], &unmatched);
        }
    }
    free(objects);
    if (status == ARCHSPLIT_OK && unmatched > 0) {
        error_set("%.*s: %u of %u wrappers are not where the core's table has them, so their "
                  "containers have no device code; install the core again",
                  (int)library->name_length,
                  (const char *)core->loader->table.index + library->name_offset, unmatched,
                  library->container_count);
        return ARCHSPLIT_OPEN_FAILED;
    }
    return status;
}

static archsplit_status graft_stub(const struct core *core, const char *stub) {
    const struct pack *table = &core->loader->table;
    for (uint32_t i = 0; i < table->head.library_count; i++) {
        if (pack_is_stub(table, pack_library(table, i), stub)) {
            return graft_all(core, pack_library(table, i), stub);
        }
    }
    error_set("%s is not a stub of a library of %s %s", stub, core->loader->identity.package,
              core->loader->identity.version);
    return ARCHSPLIT_BAD_ARGUMENT;
}

archsplit_status archsplit_graft(const char *folder, const char *stub) {
    if (folder == NULL || stub == NULL) {
        return error_bad_argument("a folder and a stub are needed");
    }
    struct core *core = NULL;
    char *resolved = core_real_folder(folder);
    archsplit_status status =
        resolved != NULL ? cores_get(resolved, stub, &core) : ARCHSPLIT_BAD_ARGUMENT;
    if (status == ARCHSPLIT_OK) {
        cores_lock();
        status = graft_stub(core, stub);
        cores_unlock();
    }
    if (status != ARCHSPLIT_OK) {
        report_failure(core != NULL ? core->packs.package : NULL);
        if (core != NULL && core->loader == NULL) {
            cores_destroy(core);
        }
    }
    free(resolved);
    return status;
}
