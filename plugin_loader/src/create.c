#define _POSIX_C_SOURCE 200809L /* strdup, strndup */

#include "create.h"

#include <stdlib.h>
#include <string.h>

#include "candidates.h"
#include "error.h"
#include "selection.h"

static bool parse_hash(const char *text, uint8_t hash[32]) {
    if (text == NULL || strlen(text) != 64 || strspn(text, "0123456789abcdefABCDEF") != 64) {
        return false;
    }
    for (int i = 0; i < 32; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};
        hash[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return true;
}

static archsplit_status take_digests(archsplit_loader *loader, const char *const *digests) {
    uint32_t count = 0;
    while (digests != NULL && digests[count] != NULL) {
        count++;
    }
    loader->digests = count > 0 ? calloc(count, sizeof *loader->digests) : NULL;
    if (count > 0 && loader->digests == NULL) {
        return error_no_memory();
    }
    for (; loader->digest_count < count; loader->digest_count++) {
        if (!parse_hash(digests[loader->digest_count], loader->digests[loader->digest_count])) {
            return error_bad_argument("a core's digests are 64 hexadecimal digits each");
        }
    }
    return ARCHSPLIT_OK;
}

static archsplit_status take_targets(archsplit_loader *loader, const archsplit_core *core) {
    if (core->targets == NULL || core->target_count == 0) {
        return ARCHSPLIT_OK;
    }
    loader->targets = calloc(core->target_count, sizeof *loader->targets);
    if (loader->targets == NULL) {
        return error_no_memory();
    }
    memcpy(loader->targets, core->targets, core->target_count * sizeof *loader->targets);
    loader->target_count = core->target_count;
    return ARCHSPLIT_OK;
}

/* The file name of the plugins, which a table of libraries has in its one row. */
static char *library_name(const struct pack *table) {
    const archsplit_pack_library *row = pack_library(table, 0);
    return table->head.library_count == 1
               ? strndup((const char *)table->index + row->name_offset, row->name_length)
               : strdup("");
}

/* The targets of the plugins, and the digests of their libraries (rule 20). */
static archsplit_status take_plugins(archsplit_loader *loader, const struct descriptor *table) {
    const archsplit_core core = {.targets = table->targets, .target_count = table->target_count};
    uint32_t count = loader->table.head.image_count;
    loader->digests = count > 0 ? calloc(count, sizeof *loader->digests) : NULL;
    if (count > 0 && loader->digests == NULL) {
        return error_no_memory();
    }
    for (; loader->digest_count < count; loader->digest_count++) {
        memcpy(loader->digests[loader->digest_count],
               pack_image(&loader->table, loader->digest_count)->digest, sizeof *loader->digests);
    }
    return take_targets(loader, &core);
}

/* Read the identity of the core from its own table. */
static archsplit_status take_table(archsplit_loader *loader, const char *path) {
    struct descriptor descriptor;
    archsplit_status status = pack_read_table(path, &loader->table, &descriptor);
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    loader->has_table = descriptor.shape == ARCHSPLIT_SHAPE_DEVICE;
    memcpy(loader->build_id, descriptor.build_id, sizeof loader->build_id);
    memcpy(loader->interface_hash, descriptor.interface_hash, sizeof loader->interface_hash);
    loader->package = strdup(descriptor.package);
    loader->version = strdup(descriptor.version);
    loader->library =
        loader->has_table ? strdup(ARCHSPLIT_PACK_FILE) : library_name(&loader->table);
    if (!loader->package || !loader->version || !loader->library) {
        return error_no_memory();
    }
    return loader->has_table ? ARCHSPLIT_OK : take_plugins(loader, &descriptor);
}

static archsplit_status take_core(archsplit_loader *loader, const archsplit_core *core) {
    if (core->table != NULL) {
        archsplit_status status = take_table(loader, core->table);
        bool has_own = loader->has_table || loader->digest_count > 0;
        return status != ARCHSPLIT_OK || has_own ? status : take_digests(loader, core->digests);
    }
    if (core->package == NULL || core->version == NULL || core->library == NULL) {
        return error_bad_argument("a core needs a package, a version and a library");
    }
    if (!parse_hash(core->build_id, loader->build_id) ||
        !parse_hash(core->interface_hash, loader->interface_hash)) {
        return error_bad_argument("a core's build_id and interface_hash are 64 hexadecimal digits");
    }
    loader->package = strdup(core->package);
    loader->version = strdup(core->version);
    loader->library = strdup(core->library);
    bool complete = loader->package && loader->version && loader->library;
    archsplit_status status = complete ? take_targets(loader, core) : error_no_memory();
    return status == ARCHSPLIT_OK ? take_digests(loader, core->digests) : status;
}

static archsplit_status fill(archsplit_loader *loader, const archsplit_core *core) {
    archsplit_status status = take_core(loader, core);
    loader->verifies = (core->flags & ARCHSPLIT_VERIFY_PLUGINS) != 0;
    bool has_digests = loader->has_table || loader->digest_count > 0;
    if (status == ARCHSPLIT_OK && loader->verifies && !has_digests) {
        return error_bad_argument("there are no digests to verify a library by");
    }
    if (status == ARCHSPLIT_OK) {
        status = candidates_find(loader, core);
    }
    if (status == ARCHSPLIT_OK) {
        status = selection_create(loader, (core->flags & ARCHSPLIT_SKIP_DEVICES) == 0);
    }
    return status;
}

archsplit_status loader_create(const archsplit_core *core, archsplit_loader **loader) {
    if (core == NULL || loader == NULL) {
        return error_bad_argument("a core, and where to put the loader, are needed");
    }
    archsplit_core known = {0};
    memcpy(&known, core, core->size < sizeof known ? core->size : sizeof known);
    *loader = calloc(1, sizeof **loader);
    if (*loader == NULL) {
        return error_no_memory();
    }
    archsplit_status status = fill(*loader, &known);
    if (status != ARCHSPLIT_OK) {
        loader_destroy(*loader);
        *loader = NULL;
    }
    return status;
}

void loader_destroy(archsplit_loader *loader) {
    if (loader == NULL) {
        return;
    }
    selection_destroy(loader->selection);
    for (uint32_t i = 0; i < loader->count; i++) {
        free(loader->candidates[i].path);
        free(loader->candidates[i].reason);
        pack_free(&loader->candidates[i].pack);
    }
    pack_free(&loader->table);
    free(loader->candidates);
    free(loader->digests);
    free(loader->targets);
    free(loader->package);
    free(loader->version);
    free(loader->library);
    free(loader);
}
