/* What a library's stub calls: find the core and the library, put the packs under it, and say what
 * keeps a GPU from being served. */
#define _POSIX_C_SOURCE 200809L /* strdup */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "detail.h"
#include "graft.h"

/* A core whose libraries were loaded; it stays, because its packs stay under them. */
struct core {
    struct core *next;
    char *folder;
    char *package; /* as it is imported */
    archsplit_loader *loader;
};

static struct core *cores;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static char *joined(const char *a, const char *b) {
    size_t size = strlen(a) + strlen(b) + 1;
    char *text = malloc(size);
    if (text != NULL) {
        snprintf(text, size, "%s%s", a, b);
    }
    return text;
}

static void complain(const struct core *core, const char *what) {
    char line[4608];
    snprintf(line, sizeof line, "archsplit: %s\nhint: python -m %s.doctor\n", what, core->package);
    os_complain(line);
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
        status = archsplit_loader_create(&asked, &core->loader);
        core->package = strdup(strrchr(parent, '/') + 1);
    }
    free(parent);
    free(plugins);
    free(table);
    return status;
}

/* Say of one GPU how much of the core's device code it misses; false when it misses nothing. */
static bool tell_device(const struct core *core, uint32_t number) {
    const struct device *device = &core->loader->machine.devices[number];
    archsplit_service service = {.size = sizeof service};
    archsplit_loader_service(core->loader, device->capability.major, device->capability.minor,
                             &service);
    if (service.missing == 0) {
        return false;
    }
    uint32_t all = service.missing + service.native + service.older_minor + service.ptx;
    detail_set("%s %s: device %u, %s (capability %u.%u), finds no code in %u of %u containers of "
               "kernels: those kernels can't run on it",
               core->loader->package, core->loader->version, number, device->name,
               device->capability.major, device->capability.minor, service.missing, all);
    complain(core, detail_text());
    return true;
}

/* A core without any plugin is how people without a GPU install it: that is worth no words. */
static void tell(const struct core *core) {
    const archsplit_loader *loader = core->loader;
    const char *strict = os_environment("ARCHSPLIT_STRICT");
    bool is_strict = strict != NULL && strcmp(strict, "1") == 0, unserved = false;
    for (uint32_t i = 0; i < loader->count; i++) {
        if (loader->candidates[i].verdict > ARCHSPLIT_SHADOWED) {
            detail_set("%s %s", loader->candidates[i].path, loader->candidates[i].reason);
            complain(core, detail_text());
        }
    }
    for (uint32_t i = 0; (is_strict || loader->count > 0) && i < loader->machine.device_count;
         i++) {
        unserved = tell_device(core, i) || unserved;
    }
    if (is_strict && unserved) {
        os_complain("archsplit: ARCHSPLIT_STRICT=1, so this process ends here\n");
        os_end();
    }
}

static struct core *find_core(const char *folder) {
    for (struct core *core = cores; core != NULL; core = core->next) {
        if (strcmp(core->folder, folder) == 0) {
            return core;
        }
    }
    return NULL;
}

/* The core in this folder, made at the first call. */
static archsplit_status take_core(const char *folder, struct core **found) {
    char *resolved = os_resolved(folder);
    *found = resolved != NULL ? find_core(resolved) : NULL;
    if (resolved == NULL || *found != NULL) {
        free(resolved);
        return *found != NULL ? ARCHSPLIT_OK : ARCHSPLIT_BAD_ARGUMENT;
    }
    struct core *core = calloc(1, sizeof *core);
    if (core == NULL) {
        free(resolved);
        return loader_no_memory();
    }
    core->folder = resolved;
    archsplit_status status = make_loader(core);
    if (status != ARCHSPLIT_OK) {
        free(core->package);
        free(core->folder);
        free(core);
        return status;
    }
    core->next = cores;
    cores = *found = core;
    tell(core);
    return ARCHSPLIT_OK;
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
        search->status = graft_library(search->core->loader, search->library, object);
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
    struct core *core = NULL;
    pthread_mutex_lock(&mutex);
    archsplit_status status = take_core(folder, &core);
    if (status == ARCHSPLIT_OK) {
        status = graft_stub(core, stub);
    }
    pthread_mutex_unlock(&mutex);
    if (status != ARCHSPLIT_OK) {
        const struct core unknown = {.package = (char[]){"<package>"}};
        complain(core != NULL ? core : &unknown, detail_text());
    }
    return status;
}
