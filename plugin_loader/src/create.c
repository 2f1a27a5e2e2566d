#define _GNU_SOURCE /* asprintf, strdup, strndup */

#include "create.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "candidates.h"
#include "detection.h"
#include "error.h"

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

/* The file name of the plugins, which a table of libraries has in its one row. */
static char *library_name(const archsplit_loader *loader) {
    const struct pack *table = &loader->table;
    const archsplit_pack_library *row = pack_library(table, 0);
    if (loader->has_packs) {
        return strdup(ARCHSPLIT_PACK_FILE);
    }
    return table->head.library_count == 1
               ? strndup((const char *)table->index + row->name_offset, row->name_length)
               : strdup("");
}

/* The digests of the plugins' libraries: from the table (rule 20), else the caller's. */
static archsplit_status read_digests(archsplit_loader *loader, const char *const *digests) {
    uint32_t listed = loader->table.head.image_count, count = listed;
    while (listed == 0 && digests != NULL && digests[count] != NULL) {
        count++;
    }
    loader->digests = calloc((size_t)count + 1, sizeof *loader->digests);
    if (loader->digests == NULL) {
        return error_no_memory();
    }
    for (uint32_t i = 0; i < count; i++) {
        if (listed > 0) {
            memcpy(loader->digests[i], pack_image(&loader->table, i)->digest,
                   sizeof *loader->digests);
        } else if (!parse_hash(digests[i], loader->digests[i])) {
            return error_bad_argument("a core's digests are 64 hexadecimal digits each");
        }
    }
    loader->digest_count = count;
    return ARCHSPLIT_OK;
}

/* Read the identity of the core from its table. */
static archsplit_status read_table(archsplit_loader *loader, const archsplit_core *core) {
    if (core->table == NULL) {
        return error_bad_argument("a core needs a table");
    }
    archsplit_status status = pack_read_table(core->table, &loader->table, &loader->identity);
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    loader->has_packs = loader->identity.shape == ARCHSPLIT_SHAPE_DEVICE;
    loader->library = library_name(loader);
    if (loader->library == NULL) {
        return error_no_memory();
    }
    return loader->has_packs ? ARCHSPLIT_OK : read_digests(loader, core->digests);
}

static archsplit_status init_loader(archsplit_loader *loader, const archsplit_core *core) {
    archsplit_status status = read_table(loader, core);
    loader->verifies = (core->flags & ARCHSPLIT_VERIFY_PLUGINS) != 0;
    bool has_digests = loader->has_packs || loader->digest_count > 0;
    if (status == ARCHSPLIT_OK && loader->verifies && !has_digests) {
        return error_bad_argument("there are no digests to verify a library by");
    }
    if (status == ARCHSPLIT_OK) {
        status = candidates_find(loader, core);
    }
    if (status == ARCHSPLIT_OK) {
        status = detection_create(loader, (core->flags & ARCHSPLIT_SKIP_DEVICES) == 0);
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
    archsplit_status status = init_loader(*loader, &known);
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
    detection_destroy(loader->detection);
    for (uint32_t i = 0; i < loader->count; i++) {
        free(loader->candidates[i].path);
        free(loader->candidates[i].reason);
        pack_free(&loader->candidates[i].pack);
    }
    pack_free(&loader->table);
    free(loader->candidates);
    free(loader->digests);
    free(loader->library);
    free(loader);
}

/* A core with all that its pointers lead to. `core` comes first: a pointer to it is one to both. */
struct allocated_core {
    archsplit_core core;
    char *table;
    char *folder;
    const char *folders[2];
};

/* The plugins of <site>/<package>/_archsplit are in <site>/<package>_plugins. */
static archsplit_status find_paths(struct allocated_core *made, const char *folder) {
    char *place = os_real_path(folder), *end = place != NULL ? strrchr(place, '/') : NULL;
    if (place == NULL) {
        return ARCHSPLIT_BAD_CORE;
    }
    *end = '\0';
    bool complete = asprintf(&made->folder, "%s_plugins", place) >= 0 &&
                    asprintf(&made->table, "%s/" ARCHSPLIT_TABLE_FILE, folder) >= 0;
    free(place);
    made->folders[0] = made->folder;
    made->core =
        (archsplit_core){.size = sizeof made->core, .table = made->table, .folders = made->folders};
    return complete ? ARCHSPLIT_OK : error_no_memory();
}

static void free_core(struct allocated_core *made) {
    if (made != NULL) {
        free(made->table);
        free(made->folder);
        free(made);
    }
}

archsplit_status archsplit_core_read(const char *folder, archsplit_core **core) {
    if (folder == NULL || core == NULL) {
        return error_bad_argument("the core's folder, and where to put the core, are needed");
    }
    struct allocated_core *made = calloc(1, sizeof *made);
    archsplit_status status = made != NULL ? find_paths(made, folder) : error_no_memory();
    *core = status == ARCHSPLIT_OK ? &made->core : NULL;
    if (status != ARCHSPLIT_OK) {
        free_core(made);
    }
    return status;
}

void archsplit_core_free(archsplit_core *core) {
    free_core((struct allocated_core *)core);
}
