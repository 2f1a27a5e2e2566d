#define _GNU_SOURCE /* asprintf */

#include "core_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "os.h"
#include "pack.h"

/* A core with all that its pointers lead to. `core` comes first: a pointer to it is one to both. */
struct core_file {
    archsplit_core core;
    char *table;
    char *folder;
    const char *folders[2];
    struct descriptor descriptor;
};

static archsplit_status read_table(struct core_file *file) {
    struct pack table;
    archsplit_status status = pack_read_table(file->table, &table, &file->descriptor);
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    pack_free(&table);
    file->core = (archsplit_core){
        .size = sizeof file->core,
        .package = file->descriptor.package,
        .version = file->descriptor.version,
        .table = file->table,
        .folders = file->folders,
    };
    return ARCHSPLIT_OK;
}

/* The plugins of <site>/<package>/_archsplit are in <site>/<package>_plugins. */
static archsplit_status fill(struct core_file *file, const char *folder) {
    char *place = os_resolved(folder), *end = place != NULL ? strrchr(place, '/') : NULL;
    if (place == NULL) {
        return ARCHSPLIT_BAD_CORE;
    }
    *end = '\0';
    bool complete = asprintf(&file->folder, "%s_plugins", place) >= 0 &&
                    asprintf(&file->table, "%s/" ARCHSPLIT_TABLE_FILE, folder) >= 0;
    free(place);
    file->folders[0] = file->folder;
    return complete ? read_table(file) : error_no_memory();
}

archsplit_status core_read(const char *folder, archsplit_core **core) {
    if (folder == NULL || core == NULL) {
        return error_bad_argument("the core's folder, and where to put the core, are needed");
    }
    struct core_file *file = calloc(1, sizeof *file);
    archsplit_status status = file != NULL ? fill(file, folder) : error_no_memory();
    *core = status == ARCHSPLIT_OK ? &file->core : NULL;
    if (status != ARCHSPLIT_OK) {
        core_free((archsplit_core *)file);
    }
    return status;
}

void core_free(archsplit_core *core) {
    struct core_file *file = (struct core_file *)core;
    if (file != NULL) {
        free(file->table);
        free(file->folder);
        free(file);
    }
}
