/* A site is a folder of packages, such as site-packages: the core is in <site>/<package>/<loader>,
 * and packs are in <site>/<package>_plugins. The sites are found by these paths, in this order: the
 * core's real path; the path of the stub, and the RPATH of each library that needs the stub, both
 * with their links (if an environment consists of links, packs may be beside the links); Python's
 * search path. archsplit_loader/_folders.py has the same order. In secure-execution mode (setuid
 * programs), only the first is used: the user who starts the program chooses the others. */
#define _POSIX_C_SOURCE 200809L /* strndup */

#include "pack_folders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "object.h"
#include "os.h"
#include "python_path.h"

struct search {
    struct pack_folders *packs;
    const char *core; /* the core's folder without links */
    const char *tail; /* the end of `core`: /<package>/<loader> */
    const char *stub;
    archsplit_status status;
};

/* True if a folder has plugins and is not in the list yet, also not by another path. */
static bool is_new(const struct pack_folders *packs, const char *folder) {
    char below[4096];
    int length = snprintf(below, sizeof below, "%s/cuda", folder);
    bool found = length > 0 && (size_t)length < sizeof below && os_exists(below);
    for (uint32_t i = 0; found && i < packs->count; i++) {
        found = !os_same_place(packs->folders[i], folder);
    }
    return found;
}

static archsplit_status append(struct pack_folders *packs, char *folder) {
    size_t size = ((size_t)packs->count + 2) * sizeof *packs->folders;
    char **more = realloc(packs->folders, size);
    if (more == NULL) {
        free(folder);
        return error_no_memory();
    }
    packs->folders = more;
    more[packs->count++] = folder;
    more[packs->count] = NULL;
    return ARCHSPLIT_OK;
}

/* Add the plugins' folder of a site. The first one, beside the core, is always listed. */
static void add_site(struct search *search, const char *site, size_t length) {
    struct pack_folders *packs = search->packs;
    bool ends = length > 0 && site[length - 1] == '/';
    size_t size = length + strlen(packs->package) + sizeof "/_plugins";
    char *folder = malloc(size);
    if (folder == NULL) {
        search->status = error_no_memory();
        return;
    }
    snprintf(folder, size, "%.*s%s%s_plugins", (int)length, site, ends ? "" : "/", packs->package);
    if (packs->count == 0 || is_new(packs, folder)) {
        search->status = append(packs, folder);
    } else {
        free(folder);
    }
}

/* Remove ".", ".." and double slashes from an absolute path. A ".." removes the name before it,
 * even if that is a link: links are not resolved. */
static void normalize(char *path) {
    char *end = path;
    for (const char *at = path; *at != '\0';) {
        size_t slashes = strspn(at, "/"), length = strcspn(at + slashes, "/");
        const char *name = at + slashes;
        at = name + length;
        if (length == 2 && memcmp(name, "..", 2) == 0) {
            while (end > path && *--end != '/') {
            }
        } else if (length > 0 && !(length == 1 && *name == '.')) {
            *end++ = '/';
            memmove(end, name, length);
            end += length;
        }
    }
    *end = '\0';
}

/* Add the site of a core's folder, if its path ends with the core's <package>/<loader>. Another
 * one, such as a folder of links to stubs, has no packs beside it. */
static void add_core(struct search *search, const char *start, size_t length, const char *rest) {
    size_t size = length + strlen(rest) + 1, tail = strlen(search->tail);
    char *folder = malloc(size);
    if (folder == NULL) {
        search->status = error_no_memory();
        return;
    }
    snprintf(folder, size, "%.*s%s", (int)length, start, rest);
    normalize(folder);
    size_t site = strlen(folder);
    if (site >= tail && strcmp(folder + site - tail, search->tail) == 0) {
        add_site(search, folder, site - tail);
    }
    free(folder);
}

/* The length of $ORIGIN or ${ORIGIN}, the library's folder, at an entry's start; 0 without it. */
static size_t origin_length(const char *entry) {
    static const char *const words[] = {"$ORIGIN", "${ORIGIN}"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]);
        if (strncmp(entry, words[i], length) == 0 && strchr("/:", entry[length]) != NULL) {
            return length;
        }
    }
    return 0;
}

static void visit_stub(const struct os_object *object, struct search *search) {
    char path[OS_PATH_SIZE];
    if (object_is_named(object, search->stub) && os_object_path(object, path)) {
        add_core(search, path, (size_t)(strrchr(path, '/') - path), "");
    }
}

/* A library that needs the stub has the core's folder on its own search path. */
static void visit_library(const struct os_object *object, struct search *search) {
    char path[OS_PATH_SIZE];
    bool needs = object_needs(object, search->stub) && os_object_path(object, path);
    const char *entry = needs ? object_search_path(object) : NULL;
    while (entry != NULL && *entry != '\0' && search->status == ARCHSPLIT_OK) {
        size_t length = strcspn(entry, ":"), origin = origin_length(entry);
        char *rest = strndup(entry + origin, length - origin);
        if (rest == NULL) {
            search->status = error_no_memory();
        } else if (origin != 0) {
            add_core(search, path, (size_t)(strrchr(path, '/') - path), rest);
        } else if (*entry == '/') {
            add_core(search, "", 0, rest);
        }
        free(rest);
        entry += length + (entry[length] == ':' ? 1 : 0);
    }
}

static void visit_objects(struct search *search,
                          void (*visit)(const struct os_object *object, struct search *search)) {
    struct os_object *objects;
    size_t count = os_objects(&objects);
    for (size_t i = 0; i < count && search->status == ARCHSPLIT_OK; i++) {
        visit(&objects[i], search);
    }
    free(objects);
}

/* The working folder is left out: it is on the search path only because a program runs there, and
 * users who can write into it must not choose the device code. */
static bool visit_python(const char *entry, void *context) {
    struct search *search = context;
    if (*entry == '/' && !os_same_place(entry, ".")) {
        add_site(search, entry, strlen(entry));
    }
    return search->status == ARCHSPLIT_OK;
}

/* Split a core's folder into site, package and its own name. */
static archsplit_status split(struct search *search) {
    const char *last = strrchr(search->core, '/'), *package = last;
    while (package != NULL && package > search->core && package[-1] != '/') {
        package--;
    }
    if (last == NULL || package == search->core) {
        return error_bad_argument("a core's folder is <site>/<package>/<loader>");
    }
    search->tail = package - 1;
    search->packs->package = strndup(package, (size_t)(last - package));
    return search->packs->package != NULL ? ARCHSPLIT_OK : error_no_memory();
}

archsplit_status pack_folders_find(const char *folder, const char *stub,
                                   struct pack_folders *packs) {
    struct search search = {.packs = packs, .core = folder, .stub = stub};
    *packs = (struct pack_folders){0};
    search.status = split(&search);
    if (search.status == ARCHSPLIT_OK) {
        add_site(&search, folder, (size_t)(search.tail - folder));
    }
    if (search.status == ARCHSPLIT_OK && !os_elevated()) {
        visit_objects(&search, visit_stub);
        visit_objects(&search, visit_library);
        if (search.status == ARCHSPLIT_OK) {
            python_path_each(visit_python, &search);
        }
    }
    if (search.status != ARCHSPLIT_OK) {
        pack_folders_free(packs);
    }
    return search.status;
}

void pack_folders_free(struct pack_folders *packs) {
    for (uint32_t i = 0; i < packs->count; i++) {
        free(packs->folders[i]);
    }
    free(packs->folders);
    free(packs->package);
    *packs = (struct pack_folders){0};
}

bool pack_folders_equal(const struct pack_folders *one, const struct pack_folders *other) {
    bool equal = one->count == other->count;
    for (uint32_t i = 0; equal && i < one->count; i++) {
        equal = strcmp(one->folders[i], other->folders[i]) == 0;
    }
    return equal;
}
