/* Two parts: the list of grafted libraries, and reports on the code that each loaded library got,
 * which may differ from the packs that are installed now.
 *
 * An entry belongs to a loaded library only if a wrapper of the library still points at the address
 * in the entry: after dlclose, another library may have the same load address. */
#define _POSIX_C_SOURCE 200809L /* strndup */

#include "grafted_libraries.h"

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
        library->first_container = row->first_container;
        library->container_count = row->container_count;
    }
    if (library == NULL || !library->folder || !library->name || !library->stub) {
        destroy(library);
        return NULL;
    }
    return library;
}

struct grafted_library *grafted_get(const char *folder, const struct pack *table,
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

bool grafted_set_targets(struct grafted_container *container, const archsplit_target *targets,
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

uint32_t grafted_count(const struct grafted_library *library, archsplit_graft_state state) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < library->container_count; i++) {
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
    const struct grafted_container *found = &library->containers[container];
    for (uint32_t i = 0; i < found->target_count; i++) {
        const archsplit_target *target = &found->targets[i];
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
        if (index < library->container_count) {
            const struct grafted_container *found = &library->containers[index];
            *grafted = (archsplit_grafted){sizeof *grafted, (uint32_t)found->state, library->name,
                                           index,           found->target_count,    found->targets};
            return true;
        }
        index -= library->container_count;
    }
    return false;
}

/* The loaded library of a stub; `is_ungrafted` if the stub's constructor didn't graft it. */
struct stub_lookup {
    const char *folder;
    const char *stub;
    const struct grafted_library *library;
    bool is_loaded;
    bool is_ungrafted;
};

/* True if the entry is this object's, and not an earlier one's at the same load address. */
static bool is_grafted(const struct os_object *object, const struct grafted_library *library) {
    bool is_changed = false;
    for (uint32_t i = 0; library != NULL && i < library->container_count; i++) {
        const struct grafted_container *each = &library->containers[i];
        uint64_t *pointer = object_pointer(object, each->wrapper - object->base);
        if (each->data != 0 && pointer != NULL && *pointer == each->data) {
            return true;
        }
        is_changed = is_changed || each->data != 0;
    }
    return library != NULL && !is_changed;
}

static bool look_up_object(const struct os_object *object, void *context) {
    struct stub_lookup *lookup = context;
    if (object_needs(object, lookup->stub)) {
        struct grafted_library *library = find(lookup->folder, lookup->stub, object->base);
        lookup->is_loaded = true;
        lookup->is_ungrafted = !is_grafted(object, library);
        lookup->library = lookup->is_ungrafted ? NULL : library;
    }
    return lookup->is_ungrafted;
}

/* Count the containers of one library: as they are in this process if it is loaded, else as the
 * installed packs would serve them. */
static void count_library(const struct device_state *state, const archsplit_pack_library *library,
                          const struct stub_lookup *lookup, struct capability capability,
                          archsplit_service *service) {
    for (uint32_t i = 0; i < library->container_count; i++) {
        uint32_t number = library->first_container + i;
        archsplit_target best = coverage_best(state, number, capability), found = best;
        if (lookup->is_loaded) {
            archsplit_graft_state graft = lookup->library != NULL
                                              ? lookup->library->containers[i].state
                                              : ARCHSPLIT_GRAFT_UNMATCHED;
            found = found_target(lookup->library, i, capability);
            bool better = best.kind != 0 && (found.kind == 0 || target_is_better(&best, &found));
            service->unmatched += graft == ARCHSPLIT_GRAFT_UNMATCHED ? 1 : 0;
            service->late += better && graft < ARCHSPLIT_GRAFT_UNMATCHED ? 1 : 0;
        }
        coverage_add(state, number, capability, &found, service);
    }
}

archsplit_status process_service(const struct device_state *state, const char *folder,
                                 struct capability capability, archsplit_service *service) {
    const struct pack *table = &state->loader->table;
    char *resolved = core_real_folder(folder);
    if (resolved == NULL) {
        return ARCHSPLIT_BAD_ARGUMENT;
    }
    *service = (archsplit_service){0};
    cores_lock();
    for (uint32_t i = 0; i < table->head.library_count; i++) {
        const archsplit_pack_library *library = pack_library(table, i);
        char stub[ARCHSPLIT_MAX_TEXT + 1] = {0};
        memcpy(stub, table->index + library->stub_offset, library->stub_length);
        struct stub_lookup lookup = {.folder = resolved, .stub = stub};
        os_each_object(look_up_object, &lookup);
        count_library(state, library, &lookup, capability, service);
    }
    cores_unlock();
    free(resolved);
    return ARCHSPLIT_OK;
}

static bool is_object_of(const struct os_object *object, void *context) {
    struct grafted_library *library = context;
    library->is_loaded = object->base == library->base && object_needs(object, library->stub) &&
                         is_grafted(object, library);
    return library->is_loaded;
}

/* Container 0 refreshes the list, because libraries can be closed. */
archsplit_status process_container(const char *folder, uint32_t index, archsplit_grafted *grafted) {
    char *resolved = core_real_folder(folder);
    if (resolved == NULL) {
        return ARCHSPLIT_BAD_ARGUMENT;
    }
    cores_lock();
    for (struct grafted_library *library = first; index == 0 && library; library = library->next) {
        if (strcmp(library->folder, resolved) == 0) {
            library->is_loaded = false;
            os_each_object(is_object_of, library);
        }
    }
    bool found = describe(resolved, index, grafted);
    cores_unlock();
    free(resolved);
    return found ? ARCHSPLIT_OK : error_bad_argument("no container has this number");
}
