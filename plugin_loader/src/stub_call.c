/* What a library's stub calls: find the core and the library, and put the packs under it. */
#define _POSIX_C_SOURCE 200809L /* strdup */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "graft.h"
#include "diagnostics.h"

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
    archsplit_status status = loader_no_memory();
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
            tell_state(core);
            return core;
        }
    } else {
        loader_no_memory();
    }
    tell(core, detail_text());
    free(core != NULL ? core->package : NULL);
    free(folder);
    free(core);
    return NULL;
}

/* The core in this folder, made at the first call; NULL as above. */
static struct core *take_core(const char *folder) {
    char *resolved = os_resolved(folder);
    if (resolved == NULL) {
        tell(NULL, detail_text());
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
        search->status = graft_library(survey_now(search->core->loader), search->library, object);
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
    detail_set("%s is no stub of a library of %s %s", stub, core->loader->package,
               core->loader->version);
    return ARCHSPLIT_BAD_ARGUMENT;
}

archsplit_status archsplit_graft(const char *folder, const char *stub) {
    if (folder == NULL || stub == NULL) {
        return loader_bad_argument("a folder and a stub are needed");
    }
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&mutex);
    struct core *core = take_core(folder);
    archsplit_status status = core != NULL ? graft_stub(core, stub) : ARCHSPLIT_BAD_ARGUMENT;
    if (core != NULL && status != ARCHSPLIT_OK) {
        tell(core, detail_text());
    }
    pthread_mutex_unlock(&mutex);
    return status;
}
