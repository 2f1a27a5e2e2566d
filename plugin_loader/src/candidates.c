#define _POSIX_C_SOURCE 200809L /* strdup */

#include "candidates.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "error.h"
#include "trace.h"

/* The depth of a plugin's file in one of the core's plugin folders: cuda/<target>/<library>. */
enum { PLUGIN_DEPTH = 3 };

/* Store the verdict on a candidate, with the error text as its reason. */
static archsplit_status candidate_set_verdict(struct candidate *candidate,
                                              archsplit_verdict verdict) {
    candidate->verdict = verdict;
    trace("%s %s", candidate->path,
          verdict == ARCHSPLIT_ACCEPTED ? "is a plugin of this core" : error_text());
    if (verdict == ARCHSPLIT_ACCEPTED) {
        return ARCHSPLIT_OK;
    }
    candidate->reason = strdup(error_text());
    return candidate->reason != NULL ? ARCHSPLIT_OK : error_no_memory();
}

/* Add a candidate, which owns `path` from now on; NULL without memory. */
static struct candidate *add_candidate(archsplit_loader *loader, char *path) {
    size_t size = (loader->count + 1) * sizeof *loader->candidates;
    struct candidate *more = path != NULL ? realloc(loader->candidates, size) : NULL;
    if (more == NULL) {
        free(path);
        error_no_memory();
        return NULL;
    }
    loader->candidates = more;
    struct candidate *candidate = &more[loader->count++];
    memset(candidate, 0, sizeof *candidate);
    candidate->path = path;
    return candidate;
}

/* dlopen searches for a name without a slash, and replaces words such as $ORIGIN. Such a path could
 * lead to another file than the one that was checked. */
static bool is_unambiguous(const char *path) {
    return strchr(path, '/') != NULL && strstr(path, "$ORIGIN") == NULL &&
           strstr(path, "$LIB") == NULL && strstr(path, "$PLATFORM") == NULL &&
           strstr(path, "${") == NULL;
}

/* A folder may be on the search path twice, or behind a link; its plugins count once. */
static archsplit_verdict check_repeated(const archsplit_loader *loader,
                                        const struct candidate *candidate) {
    for (const struct candidate *each = loader->candidates; each < candidate; each++) {
        if (os_same_file(&each->file, &candidate->file)) {
            error_set("is not used: it is the same file as %s", each->path);
            return ARCHSPLIT_SHADOWED;
        }
    }
    return ARCHSPLIT_ACCEPTED;
}

static bool is_mismatch(archsplit_verdict verdict) {
    return (verdict >= ARCHSPLIT_WRONG_PACKAGE && verdict <= ARCHSPLIT_WRONG_INTERFACE) ||
           verdict == ARCHSPLIT_UNKNOWN_TARGET;
}

static archsplit_verdict read_candidate(const archsplit_loader *loader, struct candidate *candidate,
                                        bool in_folder) {
    if (!is_unambiguous(candidate->path)) {
        error_set("can't be opened by this path: it needs a folder, and no ${}, $ORIGIN, $LIB or "
                  "$PLATFORM");
        return ARCHSPLIT_UNREADABLE;
    }
    int error = os_open(candidate->path, &candidate->file);
    if (error == ENOENT && in_folder) {
        error_set("is missing from its folder; install the plugin again or remove the folder");
        return ARCHSPLIT_MISSING;
    }
    if (error != 0) {
        return ARCHSPLIT_UNREADABLE;
    }
    archsplit_verdict verdict = check_repeated(loader, candidate);
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = check_safe(candidate, in_folder ? PLUGIN_DEPTH : 1);
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = check_plugin(loader, candidate);
    }
    if (verdict == ARCHSPLIT_ACCEPTED && loader->verifies) {
        verdict = check_content(loader, candidate, &candidate->file);
    }
    os_close(&candidate->file);
    if (verdict != ARCHSPLIT_ACCEPTED && !is_mismatch(verdict)) {
        memset(&candidate->descriptor, 0, sizeof candidate->descriptor);
    }
    return verdict;
}

static archsplit_status add_file(archsplit_loader *loader, char *path, bool in_folder,
                                 uint32_t folder) {
    struct candidate *candidate = add_candidate(loader, path);
    if (candidate == NULL) {
        return ARCHSPLIT_NO_MEMORY;
    }
    candidate->folder = folder;
    return candidate_set_verdict(candidate, read_candidate(loader, candidate, in_folder));
}

static archsplit_status add_unreadable(archsplit_loader *loader, const char *folder, int error) {
    struct candidate *candidate = add_candidate(loader, strdup(folder));
    if (candidate == NULL) {
        return ARCHSPLIT_NO_MEMORY;
    }
    error_set("can't be listed: %s; make the folder readable for this user", strerror(error));
    return candidate_set_verdict(candidate, ARCHSPLIT_UNREADABLE);
}

/* Add the plugins in one `cuda` folder. Mostly there is no such folder. */
static archsplit_status add_folder(archsplit_loader *loader, const char *folder, uint32_t number) {
    char **names;
    size_t count;
    int error = os_list(folder, &names, &count);
    if (error != 0) {
        bool absent = error == ENOENT || error == ENOTDIR;
        return absent ? ARCHSPLIT_OK : add_unreadable(loader, folder, error);
    }
    archsplit_status status = ARCHSPLIT_OK;
    for (size_t i = 0; status == ARCHSPLIT_OK && i < count; i++) {
        char *plugin = os_join(folder, names[i]);
        char *path = plugin != NULL ? os_join(plugin, loader->library) : NULL;
        free(plugin);
        status = add_file(loader, path, true, number);
    }
    os_free_names(names, count);
    return status;
}

archsplit_status candidates_find(archsplit_loader *loader, const archsplit_core *core) {
    archsplit_status status = ARCHSPLIT_OK;
    uint32_t number = 0;
    for (const char *const *file = core->files; status == ARCHSPLIT_OK && file && *file; file++) {
        status = add_file(loader, strdup(*file), false, 0);
    }
    for (const char *const *each = core->folders; status == ARCHSPLIT_OK && each && *each; each++) {
        char *folder = os_join(*each, "cuda");
        status = folder != NULL ? add_folder(loader, folder, number++) : error_no_memory();
        free(folder);
    }
    return status;
}

archsplit_status candidate_reopen(const struct candidate *candidate, struct os_file *now) {
    if (os_open(candidate->path, now) != 0) {
        error_append(" (%s)", candidate->path);
        return ARCHSPLIT_OPEN_FAILED;
    }
    if (os_unchanged(&candidate->file, now)) {
        return ARCHSPLIT_OK;
    }
    os_close(now);
    error_set("%s changed since it was read; start again", candidate->path);
    return ARCHSPLIT_OPEN_FAILED;
}

archsplit_status candidate_map(struct candidate *candidate) {
    struct os_file now;
    if (candidate->pack.bytes != NULL) {
        return ARCHSPLIT_OK;
    }
    archsplit_status status = candidate_reopen(candidate, &now);
    if (status == ARCHSPLIT_OK) {
        candidate->pack.bytes = os_map(&now);
        os_close(&now);
        if (candidate->pack.bytes == NULL) {
            error_append(" (%s)", candidate->path);
            status = ARCHSPLIT_OPEN_FAILED;
        }
        trace("%s %s", candidate->path, status == ARCHSPLIT_OK ? "is mapped" : error_text());
    }
    return status;
}
