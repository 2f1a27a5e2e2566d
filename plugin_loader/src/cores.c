#define _POSIX_C_SOURCE 200809L /* strdup */

#include "cores.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "create.h"
#include "detection.h"
#include "diagnostics.h"
#include "error.h"
#include "os.h"
#include "trace.h"

static struct core *cores;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A child has only one thread: the one that held the lock at the fork isn't there to unlock it.
 * The list is valid at every moment, because a core is listed only when it is complete. */
static void unlock_in_child(void) {
    static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    mutex = unlocked;
}

static void handle_forks(void) {
    os_at_fork(unlock_in_child);
}

/* Use the thread's error text before the lock: the first use of thread-local storage in a library
 * that dlopen loaded may take ld.so's lock, which a thread that waits for ours may hold. */
void cores_lock(void) {
    error_set("%s", "");
    pthread_once(&once, handle_forks);
    pthread_mutex_lock(&mutex);
}

void cores_unlock(void) {
    pthread_mutex_unlock(&mutex);
}

char *core_real_folder(const char *folder) {
    char *path = os_join(folder, ARCHSPLIT_TABLE_FILE);
    char *table = path != NULL ? os_real_path(path) : NULL;
    size_t length = table != NULL ? strlen(table) : 0, name = sizeof ARCHSPLIT_TABLE_FILE;
    free(path);
    /* In a store whose files are named by their digests, the real path is in no core's folder. */
    if (length > name && strcmp(table + length - name, "/" ARCHSPLIT_TABLE_FILE) == 0) {
        table[length - name] = '\0';
        return table;
    }
    free(table);
    return os_real_path(folder);
}

static uint64_t stamp_below(const char *folder, const char *name) {
    char *path = os_join(folder, name);
    uint64_t stamp = path != NULL ? os_stamp(path) : 0;
    free(path);
    return stamp;
}

/* A hash of stats, which changes when the core or a pack is installed, upgraded or removed. */
static uint64_t stamp_of(const struct core *core) {
    uint64_t stamp = stamp_below(core->folder, ARCHSPLIT_TABLE_FILE);
    for (uint32_t i = 0; i < core->packs.count; i++) {
        stamp = stamp * 31 + stamp_below(core->packs.folders[i], "cuda");
    }
    for (uint32_t i = 0; i < core->loader->count; i++) {
        stamp = stamp * 31 + os_stamp(core->loader->candidates[i].path);
    }
    return stamp;
}

void cores_destroy(struct core *core) {
    if (core != NULL) {
        loader_destroy(core->loader);
        pack_folders_free(&core->packs);
        free(core->folder);
        free(core);
    }
}

/* Make a core that is not listed yet; it owns `packs` then. The lock is not held: detection opens
 * NVML, and so waits for the lock of ld.so, which a thread that waits for ours may hold. */
static archsplit_status make_core(const char *folder, struct pack_folders *packs,
                                  struct core **made) {
    struct core *core = *made = calloc(1, sizeof *core);
    if (core == NULL) {
        pack_folders_free(packs);
        return error_no_memory();
    }
    if (detection_check_setting() != ARCHSPLIT_OK) {
        report_problem(NULL, error_text(), "");
    }
    core->packs = *packs;
    core->folder = strdup(folder);
    char *table = os_join(folder, ARCHSPLIT_TABLE_FILE);
    archsplit_status status = error_no_memory();
    if (core->folder != NULL && table != NULL) {
        for (uint32_t i = 0; i < core->packs.count; i++) {
            trace("packs of %s are searched in %s", core->packs.package, core->packs.folders[i]);
        }
        const archsplit_core request = {.size = sizeof request,
                                        .folders = (const char *const *)core->packs.folders,
                                        .table = table};
        status = loader_create(&request, &core->loader);
    }
    free(table);
    if (status == ARCHSPLIT_OK) {
        core->stamp = stamp_of(core);
    }
    return status;
}

/* The newest core of this folder, or NULL. */
static struct core *find_core(const char *folder) {
    struct core *core = cores;
    while (core != NULL && strcmp(core->folder, folder) != 0) {
        core = core->next;
    }
    return core;
}

/* A program may extend its search path, or install a pack, between one library and the next. */
static bool is_current(const struct core *core, const struct pack_folders *packs) {
    return core != NULL && pack_folders_equal(&core->packs, packs) && core->stamp == stamp_of(core);
}

/* List a core, unless another thread has listed the same; `used` is the core to use. */
static archsplit_status add_core(struct core *made, struct core **used) {
    struct core *older = find_core(made->folder);
    *used = made;
    /* The digests of tables differ if the addresses of wrappers do; the build ids may be equal. */
    if (older != NULL && memcmp(older->loader->table.head.digest, made->loader->table.head.digest,
                                sizeof older->loader->table.head.digest) != 0) {
        *used = older;
        error_set("%s was replaced by another build after its first library was loaded; start the "
                  "process again",
                  made->folder);
        return ARCHSPLIT_OPEN_FAILED;
    }
    if (older != NULL && older->stamp == made->stamp &&
        pack_folders_equal(&older->packs, &made->packs)) {
        *used = older;
        return ARCHSPLIT_OK;
    }
    made->next = cores;
    cores = made;
    return ARCHSPLIT_OK;
}

archsplit_status cores_get(const char *folder, const char *stub, struct core **used) {
    struct pack_folders packs;
    archsplit_status status = pack_folders_find(folder, stub, &packs);
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    cores_lock();
    *used = find_core(folder);
    bool current = is_current(*used, &packs);
    cores_unlock();
    if (current) {
        pack_folders_free(&packs);
        return ARCHSPLIT_OK;
    }
    if (*used != NULL) {
        trace("%s: its packs are read again, because they or their folders have changed", folder);
    }
    status = make_core(folder, &packs, used);
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    struct core *made = *used;
    cores_lock();
    status = add_core(made, used);
    cores_unlock();
    if (status == ARCHSPLIT_OK && *used == made) {
        report_state(made->loader, made->packs.package);
    } else {
        cores_destroy(made);
    }
    return status;
}
