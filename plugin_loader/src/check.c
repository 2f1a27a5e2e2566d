#define _POSIX_C_SOURCE 200809L /* strdup */

#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat.h"
#include "trace.h"
#include "untrusted.h"

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

static archsplit_verdict check_ids(const archsplit_loader *loader, const struct descriptor *found) {
    if (strcmp(found->package, loader->identity.package) != 0) {
        error_set("is a plugin of %s, expected one of %s", found->package,
                  loader->identity.package);
        return ARCHSPLIT_WRONG_PACKAGE;
    }
    if (strcmp(found->version, loader->identity.version) != 0) {
        error_set("is a plugin for %s %s, expected one for %s; install the plugin of this version",
                  found->package, found->version, loader->identity.version);
        return ARCHSPLIT_WRONG_VERSION;
    }
    if (!same_hash("build id", found->build_id, loader->identity.build_id)) {
        return ARCHSPLIT_WRONG_BUILD;
    }
    if (!same_hash("interface hash", found->interface_hash, loader->identity.interface_hash)) {
        return ARCHSPLIT_WRONG_INTERFACE;
    }
    return ARCHSPLIT_ACCEPTED;
}

static bool is_known(const archsplit_loader *loader, const archsplit_target *target) {
    bool known = false;
    for (uint32_t i = 0; !known && i < loader->identity.target_count; i++) {
        known = target_equals(&loader->identity.targets[i], target);
    }
    return known;
}

/* Pins can be copied: without this a plugin for sm_90a in another folder would be preferred to the
 * core's own for sm_90. */
static archsplit_verdict check_targets(const archsplit_loader *loader,
                                       const struct descriptor *found) {
    for (uint32_t i = 0; i < found->target_count; i++) {
        if (!is_known(loader, &found->targets[i])) {
            error_set("is for %s, but %s %s has no plugin for that; remove it",
                      target_name(&found->targets[i]).text, loader->identity.package,
                      loader->identity.version);
            return ARCHSPLIT_UNKNOWN_TARGET;
        }
    }
    return ARCHSPLIT_ACCEPTED;
}

/* The rights on the core itself: the file that has this code, and its folder. */
struct core_rights {
    bool known;
    struct os_rights file;
    struct os_rights folder;
};

/* True if each user who may write a file may write another one as well. */
static bool is_within(const struct os_rights *found, const struct os_rights *core) {
    bool same_group = core->by_group && core->group == found->group;
    return (found->owner == 0 || found->owner == os_user() || found->owner == core->owner) &&
           (!found->by_group || same_group || core->by_all) && (!found->by_all || core->by_all);
}

static bool is_protected(const struct os_rights *found, const struct core_rights *core) {
    static const struct os_rights roots = {0};
    return is_within(found, &roots) ||
           (core->known && (is_within(found, &core->file) || is_within(found, &core->folder)));
}

static archsplit_verdict check_rights(const struct os_rights *found, const struct core_rights *core,
                                      const char *what, const char *path) {
    if (is_protected(found, core)) {
        return ARCHSPLIT_ACCEPTED;
    }
    if (found->by_group || found->by_all) {
        error_set("is not used: users other than its owner can change it%s, but not the core, and "
                  "this process is privileged; chmod go-w %s",
                  what, path);
    } else {
        error_set("is not used: user %u can change it%s, but not the core, and this process is "
                  "privileged; chown %u %s",
                  found->owner, what, os_user(), path);
    }
    return ARCHSPLIT_UNSAFE;
}

static archsplit_verdict check_folder(const char *folder, const struct core_rights *core) {
    struct os_rights found;
    char what[512];
    if (!os_read_rights(folder, &found)) {
        return ARCHSPLIT_ACCEPTED; /* what is gone can't be opened */
    }
    snprintf(what, sizeof what, "s folder %s", folder);
    return check_rights(&found, core, what, folder);
}

/* Check the folders around a path, which is cut down to each of them. */
static archsplit_verdict check_folders(char *path, int levels, const struct core_rights *core) {
    archsplit_verdict verdict = ARCHSPLIT_ACCEPTED;
    for (; verdict == ARCHSPLIT_ACCEPTED && levels > 0; levels--) {
        char *slash = strrchr(path, '/');
        if (slash == NULL || slash == path) {
            return check_folder(slash == NULL ? "." : "/", core);
        }
        *slash = '\0';
        verdict = check_folder(path, core);
    }
    return verdict;
}

archsplit_verdict check_safe(const struct candidate *candidate, int levels) {
    if (!os_privileged()) {
        return ARCHSPLIT_ACCEPTED;
    }
    struct core_rights core = {.known = false};
    core.known = os_loader_rights(&core.file, &core.folder);
    char *path = strdup(candidate->path), *resolved = os_real_path(candidate->path);
    archsplit_verdict verdict = check_rights(&candidate->file.rights, &core, "", candidate->path);
    if (verdict == ARCHSPLIT_ACCEPTED && (path == NULL || resolved == NULL)) {
        error_set("is not used: the owner of its folder can't be determined");
        verdict = ARCHSPLIT_UNSAFE;
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = check_folders(path, levels, &core);
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = check_folders(resolved, 1, &core);
    }
    free(path);
    free(resolved);
    return verdict;
}

/* Read the descriptor, and a device pack's index, and compare them with the core. */
archsplit_verdict check_plugin(const archsplit_loader *loader, struct candidate *candidate) {
    struct descriptor *found = &candidate->descriptor;
    archsplit_verdict verdict = loader->has_packs
                                    ? pack_read(&candidate->file, false, &candidate->pack, found)
                                    : descriptor_read(&candidate->file, found);
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = check_ids(loader, found);
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = loader->has_packs ? pack_match(&candidate->pack, &loader->table)
                                    : check_targets(loader, found);
    }
    return verdict;
}

static bool has_digest(const archsplit_loader *loader, const uint8_t digest[32]) {
    for (uint32_t i = 0; i < loader->digest_count; i++) {
        if (memcmp(loader->digests[i], digest, sizeof loader->digests[i]) == 0) {
            return true;
        }
    }
    return false;
}

static archsplit_verdict verify_library(const archsplit_loader *loader,
                                        const struct os_file *file) {
    uint8_t digest[32];
    archsplit_verdict verdict = pack_hash(file, "content", 0, file->size, digest);
    if (verdict == ARCHSPLIT_ACCEPTED && !has_digest(loader, digest)) {
        error_set("is damaged: its SHA-256 is not a recorded one" REINSTALL);
        return ARCHSPLIT_DAMAGED;
    }
    return verdict;
}

archsplit_verdict check_content(const archsplit_loader *loader, const struct candidate *candidate,
                                const struct os_file *file) {
    archsplit_verdict verdict =
        loader->has_packs ? pack_verify(&candidate->pack, file) : verify_library(loader, file);
    trace("%s %s", candidate->path,
          verdict == ARCHSPLIT_ACCEPTED ? "has the recorded digests" : error_text());
    return verdict;
}
