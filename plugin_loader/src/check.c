#define _POSIX_C_SOURCE 200809L /* strdup */

#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

/* Compare hashes; when they differ, say how. */
static bool same_hash(const char *what, const uint8_t found[32], const uint8_t expected[32]) {
    if (memcmp(found, expected, 32) == 0) {
        return true;
    }
    char text[2][17];
    for (int i = 0; i < 8; i++) {
        snprintf(text[0] + 2 * i, 3, "%02x", found[i]);
        snprintf(text[1] + 2 * i, 3, "%02x", expected[i]);
    }
    error_set("has the %s %s..., expected %s...; install core and plugin from one release", what,
              text[0], text[1]);
    return false;
}

static archsplit_verdict check_pin(const archsplit_loader *loader, const struct descriptor *found) {
    if (strcmp(found->package, loader->package) != 0) {
        error_set("is a plugin of %s, expected one of %s", found->package, loader->package);
        return ARCHSPLIT_WRONG_PACKAGE;
    }
    if (strcmp(found->version, loader->version) != 0) {
        error_set("is a plugin for %s %s, expected one for %s; install the plugin of this version",
                  found->package, found->version, loader->version);
        return ARCHSPLIT_WRONG_VERSION;
    }
    if (!same_hash("build id", found->build_id, loader->build_id)) {
        return ARCHSPLIT_WRONG_BUILD;
    }
    if (!same_hash("interface hash", found->interface_hash, loader->interface_hash)) {
        return ARCHSPLIT_WRONG_INTERFACE;
    }
    return ARCHSPLIT_ACCEPTED;
}

/* Whether others may write into one of the folders around a path, which is cut down to that one. */
static bool is_folder_shared(char *path, int levels) {
    for (; levels > 0; levels--) {
        char *slash = strrchr(path, '/');
        if (slash == NULL || slash == path) {
            return os_folder_shared(slash == NULL ? "." : "/");
        }
        *slash = '\0';
        if (os_folder_shared(path)) {
            return true;
        }
    }
    return false;
}

static archsplit_verdict unsafe(const char *what, const char *folder) {
    error_set("is not used: others than its owner may write %s%s, and this process is privileged; "
              "chmod go-w it",
              what, folder);
    return ARCHSPLIT_UNSAFE;
}

archsplit_verdict check_safe(const struct candidate *candidate, int levels) {
    if (!os_privileged()) {
        return ARCHSPLIT_ACCEPTED;
    }
    if (candidate->file.shared) {
        return unsafe("it", "");
    }
    char *path = strdup(candidate->path), *resolved = os_resolved(candidate->path);
    archsplit_verdict verdict = ARCHSPLIT_ACCEPTED;
    if (path == NULL || resolved == NULL) {
        error_set("is not used: who may write its folder can't be found out");
        verdict = ARCHSPLIT_UNSAFE;
    } else if (is_folder_shared(path, levels)) {
        verdict = unsafe("its folder ", path);
    } else if (is_folder_shared(resolved, 1)) {
        verdict = unsafe("its folder ", resolved);
    }
    free(path);
    free(resolved);
    return verdict;
}

/* Whose it is, from the file; with what else a device pack's front says. */
archsplit_verdict check_plugin(const archsplit_loader *loader, struct candidate *candidate) {
    if (!loader->has_table) {
        archsplit_verdict verdict = descriptor_read(&candidate->file, &candidate->descriptor);
        return verdict == ARCHSPLIT_ACCEPTED ? check_pin(loader, &candidate->descriptor) : verdict;
    }
    archsplit_verdict verdict =
        pack_read(&candidate->file, false, &candidate->pack, &candidate->descriptor);
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = check_pin(loader, &candidate->descriptor);
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = pack_match(&candidate->pack, &loader->table);
    }
    return verdict;
}
