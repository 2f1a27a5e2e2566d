/* Reports on this process: the code that each loaded library got, whatever lies on the disk now.
 *
 * A record counts for a loaded library only if a wrapper of that library still points where the
 * record has it. Libraries can be closed, and another one may have the address then. */
#include "process.h"

#include <stdlib.h>
#include <string.h>

#include "cores.h"
#include "coverage.h"
#include "error.h"
#include "grafts.h"
#include "object.h"

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
        struct grafted_library *record = grafts_find(loaded->folder, loaded->stub, object->base);
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
            found = grafts_found(loaded->record, i, capability);
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

static void look_up_library(struct grafted_library *record) {
    record->is_loaded = false;
    os_each_object(is_object_of, record);
}

/* The first container of a list brings the record up to date, because libraries can be closed. */
archsplit_status process_container(const char *folder, uint32_t index, archsplit_grafted *grafted) {
    char *resolved = cores_folder(folder);
    if (resolved == NULL) {
        return ARCHSPLIT_BAD_ARGUMENT;
    }
    cores_lock();
    if (index == 0) {
        grafts_each(resolved, look_up_library);
    }
    bool found = grafts_describe(resolved, index, grafted);
    cores_unlock();
    free(resolved);
    return found ? ARCHSPLIT_OK : error_bad_argument("no container has this number");
}
