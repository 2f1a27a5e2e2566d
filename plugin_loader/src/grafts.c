#define _POSIX_C_SOURCE 200809L /* strndup */

#include "grafts.h"

#include <stdlib.h>
#include <string.h>

static struct grafted_library *first, **last = &first;

struct grafted_library *grafts_find(const char *folder, const char *stub, uint64_t base) {
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
    struct grafted_library *found = made != NULL ? grafts_find(folder, made->stub, base) : NULL;
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

void grafts_each(const char *folder, void (*call)(struct grafted_library *library)) {
    for (struct grafted_library *library = first; library != NULL; library = library->next) {
        if (strcmp(library->folder, folder) == 0) {
            call(library);
        }
    }
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

archsplit_target grafts_found(const struct grafted_library *library, uint32_t container,
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

bool grafts_describe(const char *folder, uint32_t index, archsplit_grafted *grafted) {
    const struct grafted_library *library = first;
    for (; library != NULL; library = library->next) {
        if (library->is_loaded && strcmp(library->folder, folder) == 0) {
            if (index < library->count) {
                break;
            }
            index -= library->count;
        }
    }
    if (library == NULL) {
        return false;
    }
    const struct grafted_container *record = &library->containers[index];
    grafted->state = (uint32_t)record->state;
    grafted->library = library->name;
    grafted->container = index;
    grafted->target_count = record->target_count;
    grafted->targets = record->targets;
    return true;
}
