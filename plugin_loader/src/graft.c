/* Two parts: first the images of the packs are put under one library; then the core and the library
 * are found for a stub that asks for that. */
#define _POSIX_C_SOURCE 200809L /* strdup */

#include "graft.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "candidates.h"
#include "coverage.h"
#include "create.h"
#include "diagnostics.h"
#include "error.h"
#include "object.h"
#include "selection.h"

enum { ALIGNMENT = 64, HEADER = 16 };

/* The header of every container, but for its size. Source: measured; see splitter/binfmt/fatbin.py.
 */
static const uint8_t header[8] = {0x50, 0xed, 0x55, 0xba, 1, 0, HEADER, 0};

/* Containers that are put together from several packs, because GPUs differ. */
struct merged {
    uint8_t *memory; /* NULL while it is only measured */
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

static bool has_all_wanted(const struct candidate *candidate, uint32_t number,
                           const struct wanted *wanted) {
    const archsplit_pack_container *container = pack_container(&candidate->pack, number);
    bool all = container->offset != 0;
    for (uint32_t i = 0; all && i < wanted->count; i++) {
        all = has_wanted(&candidate->pack, container, &wanted->targets[i]);
    }
    return all;
}

/* The one pack that has all that a container needs, or NULL. */
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

/* The next image in the order of the container that was split: the one with the lowest number that
 * is not below `number`, whichever pack has it. */
static const archsplit_pack_image *next_image(const struct device_state *state, uint32_t container,
                                              const struct wanted *wanted, uint32_t number,
                                              struct candidate **holder) {
    const archsplit_pack_image *next = NULL;
    for (uint32_t i = 0; i < state->loader->count; i++) {
        struct candidate *candidate = &state->loader->candidates[i];
        if (!state_accepts(state, i)) {
            continue;
        }
        const archsplit_pack_container *from = pack_container(&candidate->pack, container);
        for (uint32_t j = 0; j < from->image_count; j++) {
            const archsplit_pack_image *image = pack_image(&candidate->pack, from->first_image + j);
            if (image->number >= number && (next == NULL || image->number < next->number) &&
                coverage_has(wanted, &image->target)) {
                next = image;
                *holder = candidate;
            }
        }
    }
    return next;
}

/* Append one container to what is merged; 0 when none of its images is wanted. */
static archsplit_status merge(const struct device_state *state, uint32_t container,
                              const struct wanted *wanted, struct merged *merged, uint8_t **place) {
    size_t start = (merged->size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, size = HEADER;
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
        if (merged->memory != NULL) {
            memcpy(merged->memory + start + size, holder->pack.bytes + image->offset,
                   (size_t)image->size);
        }
        size += (size_t)image->size;
    }
    if (merged->memory != NULL) {
        uint64_t body = size - HEADER;
        *place = merged->memory + start;
        memcpy(*place, header, sizeof header);
        memcpy(*place + sizeof header, &body, sizeof body);
    }
    merged->size = start + size;
    return ARCHSPLIT_OK;
}

/* Serve one container. While `merged` is measured, only those that need no merging are pointed. */
static archsplit_status serve(const struct device_state *state, uint32_t number,
                              const struct os_object *object, struct merged *merged) {
    const archsplit_pack_container *row = pack_container(&state->loader->table, number);
    uint64_t *pointer = object_pointer(object, row->wrapper, row->address);
    struct wanted wanted;
    coverage_wanted(state, number, &wanted);
    if (pointer == NULL || (!wanted.all && wanted.count == 0)) {
        return ARCHSPLIT_OK;
    }
    struct candidate *sole = sole_pack(state, number, &wanted);
    uint8_t *place = NULL;
    archsplit_status status = ARCHSPLIT_OK;
    if (sole == NULL) {
        status = merge(state, number, &wanted, merged, &place);
    } else {
        status = candidate_map(sole);
        if (status == ARCHSPLIT_OK) {
            place = (uint8_t *)(uintptr_t)sole->pack.bytes +
                    pack_container(&sole->pack, number)->offset;
        }
    }
    if (status == ARCHSPLIT_OK && place != NULL) {
        *pointer = (uint64_t)(uintptr_t)place;
    }
    return status;
}

static archsplit_status serve_all(const struct device_state *state,
                                  const archsplit_pack_library *library,
                                  const struct os_object *object, struct merged *merged) {
    archsplit_status status = ARCHSPLIT_OK;
    for (uint32_t i = 0; status == ARCHSPLIT_OK && i < library->container_count; i++) {
        status = serve(state, library->first_container + i, object, merged);
    }
    return status;
}

static archsplit_status graft_library(const struct device_state *state,
                                      const archsplit_pack_library *library,
                                      const struct os_object *object) {
    struct merged merged = {NULL, 0};
    archsplit_status status = serve_all(state, library, object, &merged);
    if (status != ARCHSPLIT_OK || merged.size == 0) {
        return status;
    }
    size_t size = merged.size;
    merged = (struct merged){os_reserve(size), 0};
    if (merged.memory == NULL) {
        return ARCHSPLIT_NO_MEMORY;
    }
    status = serve_all(state, library, object, &merged);
    os_seal(merged.memory, size);
    return status;
}

/* A core whose libraries were loaded; it stays, because its packs stay under them. */
struct core {
    struct core *next;
    char *folder;
    char *package; /* as it is imported */
    archsplit_loader *loader;
};

static struct core *cores;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A child has one thread alone: whoever held the lock when it was forked isn't there to unlock it.
 * What the lock guards is whole at every moment, because a core is listed when it is complete. */
static void unlock_in_child(void) {
    static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    mutex = unlocked;
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, unlock_in_child);
}

static char *joined(const char *a, const char *b) {
    size_t size = strlen(a) + strlen(b) + 1;
    char *text = malloc(size);
    if (text != NULL) {
        snprintf(text, size, "%s%s", a, b);
    }
    return text;
}

/* The plugins of <site>/<package>/_archsplit are in <site>/<package>_plugins. */
static archsplit_status make_loader(struct core *core) {
    char *slash = strrchr(core->folder, '/');
    char *parent = slash != NULL ? strndup(core->folder, (size_t)(slash - core->folder)) : NULL;
    char *plugins = parent != NULL ? joined(parent, "_plugins") : NULL;
    char *table = joined(core->folder, "/" ARCHSPLIT_TABLE_FILE);
    archsplit_status status = error_no_memory();
    if (plugins != NULL && table != NULL) {
        const char *const folders[] = {plugins, NULL};
        const archsplit_core asked = {.size = sizeof asked, .folders = folders, .table = table};
        core->package = strdup(strrchr(parent, '/') + 1);
        status = core->package != NULL ? loader_create(&asked, &core->loader) : status;
    }
    free(parent);
    free(plugins);
    free(table);
    return status;
}

static struct core *find_core(const char *folder) {
    for (struct core *core = cores; core != NULL; core = core->next) {
        if (strcmp(core->folder, folder) == 0) {
            return core;
        }
    }
    return NULL;
}

/* Takes over the folder's name; NULL when what keeps it from being a core was said. */
static struct core *make_core(char *folder) {
    struct core *core = calloc(1, sizeof *core);
    if (core != NULL) {
        core->folder = folder;
        if (make_loader(core) == ARCHSPLIT_OK) {
            core->next = cores;
            cores = core;
            report_state(core->loader, core->package);
            return core;
        }
    } else {
        error_no_memory();
    }
    report_problem(core != NULL ? core->package : NULL, error_text());
    free(core != NULL ? core->package : NULL);
    free(folder);
    free(core);
    return NULL;
}

/* The core in this folder, made at the first call; NULL as above. */
static struct core *take_core(const char *folder) {
    char *resolved = os_resolved(folder);
    if (resolved == NULL) {
        report_problem(NULL, error_text());
        return NULL;
    }
    struct core *found = find_core(resolved);
    if (found == NULL) {
        return make_core(resolved);
    }
    free(resolved);
    return found;
}

struct search {
    struct core *core;
    const archsplit_pack_library *library;
    const char *stub;
    archsplit_status status;
};

static bool graft_object(const struct os_object *object, void *context) {
    struct search *search = context;
    if (object_needs(object, search->stub)) {
        search->status =
            graft_library(selection_now(search->core->loader), search->library, object);
    }
    return search->status != ARCHSPLIT_OK;
}

static archsplit_status graft_stub(struct core *core, const char *stub) {
    const struct pack *table = &core->loader->table;
    for (uint32_t i = 0; i < table->head.library_count; i++) {
        const archsplit_pack_library *library = pack_library(table, i);
        if (pack_is_stub(table, library, stub)) {
            struct search search = {core, library, stub, ARCHSPLIT_OK};
            os_each_object(graft_object, &search);
            return search.status;
        }
    }
    error_set("%s is no stub of a library of %s %s", stub, core->loader->package,
              core->loader->version);
    return ARCHSPLIT_BAD_ARGUMENT;
}

archsplit_status graft(const char *folder, const char *stub) {
    if (folder == NULL || stub == NULL) {
        return error_bad_argument("a folder and a stub are needed");
    }
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&mutex);
    struct core *core = take_core(folder);
    archsplit_status status = core != NULL ? graft_stub(core, stub) : ARCHSPLIT_BAD_ARGUMENT;
    if (core != NULL && status != ARCHSPLIT_OK) {
        report_problem(core->package, error_text());
    }
    pthread_mutex_unlock(&mutex);
    return status;
}
