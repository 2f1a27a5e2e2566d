/* Two parts: the records, and reports on this process, which are about the code that each loaded
 * library got, whatever lies on the disk now.
 *
 * A record counts for a loaded library only if a wrapper of that library still points where the
 * record has it. Libraries can be closed, and another one may have the address then. */
#define _POSIX_C_SOURCE 200809L /* strndup */

#include "grafts.h"

#include <stdlib.h>
#include <string.h>

#include "cores.h"
#include "coverage.h"
#include "error.h"
#include "object.h"

static struct grafted_library *first, **last = &first;

static struct grafted_library *find(const char *folder, const char *stub, uint64_t base) {
    struct grafted_library *library = first;
    while (library != NULL && (library->base != base || strcmp(library->stub, stub) != 0 ||
                               strcmp(library->folder, folder) != 0)) {
        library = library->next;
    }
    return library;
}

static void destroy(struct grafted_library *library) {
    if (library != NULL) {
        free(library->folder);
        free(library->name);
        free(library->stub);
        free(library);
    }
}

static struct grafted_library *create(const char *folder, const struct pack *table,
                                      const archsplit_pack_library *row, uint64_t base) {
    struct grafted_library *library = NULL;
    library = calloc(1, sizeof *library + row->container_count * sizeof *library->containers);
    if (library != NULL) {
        const char *texts = (const char *)table->index;
        library->folder = strdup(folder);
        library->name = strndup(texts + row->name_offset, row->name_length);
        library->stub = strndup(texts + row->stub_offset, row->stub_length);
        library->base = base;
        library->first = row->first_container;
        library->count = row->container_count;
    }
    if (library == NULL || !library->folder || !library->name || !library->stub) {
        destroy(library);
        return NULL;
    }
    return library;
}

struct grafted_library *grafts_take(const char *folder, const struct pack *table,
                                    const archsplit_pack_library *row, uint64_t base) {
    struct grafted_library *made = create(folder, table, row, base);
    struct grafted_library *found = made != NULL ? find(folder, made->stub, base) : NULL;
    if (found != NULL) {
        destroy(made);
        return found;
    }
    if (made != NULL) {
        *last = made;
        last = &made->next;
    }
    return made;
}

bool grafts_set_targets(struct grafted_container *container, const archsplit_target *targets,
                        uint32_t count) {
    archsplit_target *copy = malloc((count + 1) * sizeof *copy);
    if (copy != NULL) {
        memcpy(copy, targets, count * sizeof *copy);
        free(container->targets);
        container->targets = copy;
        container->target_count = count;
    }
    return copy != NULL;
}

uint32_t grafts_count(const struct grafted_library *library, archsplit_graft_state state) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < library->count; i++) {
        count += library->containers[i].state == state ? 1 : 0;
    }
    return count;
}

static archsplit_target found_target(const struct grafted_library *library, uint32_t container,
                                     struct capability capability) {
    archsplit_target best = {0};
    if (library == NULL || library->containers[container].state != ARCHSPLIT_GRAFT_SERVED) {
        return best;
    }
    const struct grafted_container *record = &library->containers[container];
    for (uint32_t i = 0; i < record->target_count; i++) {
        const archsplit_target *target = &record->targets[i];
        if (target_runs_on(target, capability) &&
            (best.kind == 0 || target_is_better(target, &best))) {
            best = *target;
        }
    }
    return best;
}

static bool describe(const char *folder, uint32_t index, archsplit_grafted *grafted) {
    for (const struct grafted_library *library = first; library; library = library->next) {
        if (!library->is_loaded || strcmp(library->folder, folder) != 0) {
            continue;
        }
        if (index < library->count) {
            const struct grafted_container *record = &library->containers[index];
            *grafted =
                (archsplit_grafted){sizeof *grafted, (uint32_t)record->state, library->name,
                                    index,           record->target_count,    record->targets};
            return true;
        }
        index -= library->count;
    }
    return false;
}

/* The search for libraries that are loaded, but whose stub didn't call. */
struct loaded {
    const char *folder;
    const char *stub;
    const struct grafted_library *record;
    bool is_loaded;
    bool is_missed;
};

/* True if the record is of this object, and not of one that was at its address before. */
static bool is_recorded(const struct os_object *object, const struct grafted_library *record) {
    bool is_changed = false;
    for (uint32_t i = 0; record != NULL && i < record->count; i++) {
        const struct grafted_container *each = &record->containers[i];
        uint64_t *pointer = object_pointer(object, each->wrapper - object->base);
        if (each->place != 0 && pointer != NULL && *pointer == each->place) {
            return true;
        }
        is_changed = is_changed || each->place != 0;
    }
    return record != NULL && !is_changed;
}

static bool look_up_object(const struct os_object *object, void *context) {
    struct loaded *loaded = context;
    if (object_needs(object, loaded->stub)) {
        struct grafted_library *record = find(loaded->folder, loaded->stub, object->base);
        loaded->is_loaded = true;
        loaded->is_missed = !is_recorded(object, record);
        loaded->record = loaded->is_missed ? NULL : record;
    }
    return loaded->is_missed;
}

/* Count the containers of one library: as they are in this process where it is loaded, else as the
 * packs at hand would serve them. */
static void count_library(const struct device_state *state, const archsplit_pack_library *library,
                          const struct loaded *loaded, struct capability capability,
                          archsplit_service *service) {
    for (uint32_t i = 0; i < library->container_count; i++) {
        uint32_t number = library->first_container + i;
        archsplit_target now = coverage_found(state, number, capability), found = now;
        if (loaded->is_loaded) {
            archsplit_graft_state became = loaded->record != NULL
                                               ? loaded->record->containers[i].state
                                               : ARCHSPLIT_GRAFT_UNMATCHED;
            found = found_target(loaded->record, i, capability);
            bool better = now.kind != 0 && (found.kind == 0 || target_is_better(&now, &found));
            service->unmatched += became == ARCHSPLIT_GRAFT_UNMATCHED ? 1 : 0;
            service->late += better && became < ARCHSPLIT_GRAFT_UNMATCHED ? 1 : 0;
        }
        coverage_add(state, number, capability, &found, service);
    }
}

archsplit_status process_service(const struct device_state *state, const char *folder,
                                 struct capability capability, archsplit_service *service) {
    const struct pack *table = &state->loader->table;
    char *resolved = cores_folder(folder);
    if (resolved == NULL) {
        return ARCHSPLIT_BAD_ARGUMENT;
    }
    *service = (archsplit_service){0};
    cores_lock();
    for (uint32_t i = 0; i < table->head.library_count; i++) {
        const archsplit_pack_library *library = pack_library(table, i);
        char stub[ARCHSPLIT_MAX_TEXT + 1] = {0};
        memcpy(stub, table->index + library->stub_offset, library->stub_length);
        struct loaded loaded = {.folder = resolved, .stub = stub};
        os_each_object(look_up_object, &loaded);
        count_library(state, library, &loaded, capability, service);
    }
    cores_unlock();
    free(resolved);
    return ARCHSPLIT_OK;
}

static bool is_object_of(const struct os_object *object, void *context) {
    struct grafted_library *record = context;
    record->is_loaded = object->base == record->base && object_needs(object, record->stub) &&
                        is_recorded(object, record);
    return record->is_loaded;
}

/* Container 0 refreshes the records, because libraries can be closed. */
archsplit_status process_container(const char *folder, uint32_t index, archsplit_grafted *grafted) {
    char *resolved = cores_folder(folder);
    if (resolved == NULL) {
        return ARCHSPLIT_BAD_ARGUMENT;
    }
    cores_lock();
    for (struct grafted_library *record = first; index == 0 && record; record = record->next) {
        if (strcmp(record->folder, resolved) == 0) {
            record->is_loaded = false;
            os_each_object(is_object_of, record);
        }
    }
    bool found = describe(resolved, index, grafted);
    cores_unlock();
    free(resolved);
    return found ? ARCHSPLIT_OK : error_bad_argument("no container has this number");
}
