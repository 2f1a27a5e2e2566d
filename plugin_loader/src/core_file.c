#define _GNU_SOURCE /* asprintf */

#include "core_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "json.h"
#include "os.h"

enum { SCHEMA = 1, MOST_BYTES = 1 << 20, MOST_TARGETS = 1024 };

/* A core with everything that its pointers lead to. `core` comes first: whoever has its address has
 * this one's. */
struct core_file {
    archsplit_core core;
    char *bytes; /* the file, with its texts decoded in place */
    char *folder;
    char *table;
    const char *folders[2];
    archsplit_target *targets;
    const char *digests[MOST_TARGETS + 1];
    uint32_t digest_count;
    /* What is only needed while the file is read: */
    const char *path;
    const char *plugins_package;
    const char *distribution;
    const char *wrong_target;
    const char *wrong_value; /* the name of a member whose value is of another kind */
    uint32_t packs;
    bool has_schema;
    bool has_packs;
};

/* One sentence for every fault, as the Python reader has it. */
#define AGAIN "; install the core again"

/* True if a text can be shown and used as a name: not empty, and without control characters. */
static bool is_name(const char *text) {
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        /* U+0080 to U+009F are 0xc2 with these. */
        bool is_second_set = at[0] == 0xc2 && at[1] < 0xa0;
        if (*at < ' ' || *at == 0x7f || is_second_set) {
            return false;
        }
    }
    return *text != '\0';
}

static bool is_hash(const char *text) {
    return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

/* Read sm_90a and the like: the last digit is the minor number, all before it the major one. */
static bool parse_target(const char *name, archsplit_target *target) {
    bool is_ptx = strncmp(name, "compute_", 8) == 0;
    if (!is_ptx && strncmp(name, "sm_", 3) != 0) {
        return false;
    }
    const char *number = name + (is_ptx ? 8 : 3);
    size_t digits = strspn(number, "0123456789");
    if (digits < 2 || digits > 4 || *number == '0') {
        return false;
    }
    char suffix = number[digits];
    if (suffix != '\0' && ((suffix != 'a' && suffix != 'f') || number[digits + 1] != '\0')) {
        return false;
    }
    unsigned value = 0;
    for (size_t i = 0; i < digits; i++) {
        value = value * 10 + (unsigned)(number[i] - '0');
    }
    *target = (archsplit_target){
        .kind = is_ptx ? ARCHSPLIT_KIND_PTX : ARCHSPLIT_KIND_SASS,
        .major = (uint16_t)(value / 10),
        .minor = (uint16_t)(value % 10),
        .suffix = (uint16_t)suffix,
    };
    return true;
}

static bool read_target(struct json *json, char *name, void *context) {
    struct core_file *file = context;
    char *distribution;
    if (!json_is(json, '"')) {
        file->wrong_value = "targets";
        return json_skip(json);
    }
    if (!json_text(json, &distribution)) {
        return false;
    }
    uint32_t number = file->core.target_count;
    if (number == MOST_TARGETS || !parse_target(name, &file->targets[number])) {
        file->wrong_target = name;
    } else if (!is_name(distribution)) {
        file->wrong_value = "targets";
    } else {
        file->core.target_count++;
    }
    return true;
}

/* One library's SHA-256; a repeated member is one too many for the list, but no fault of the core.
 */
static bool read_digest(struct json *json, char *name, void *context) {
    struct core_file *file = context;
    char *digest;
    (void)name;
    if (!json_is(json, '"')) {
        file->wrong_value = "digests";
        return json_skip(json);
    }
    if (!json_text(json, &digest)) {
        return false;
    }
    if (file->digest_count == MOST_TARGETS || !is_hash(digest)) {
        file->wrong_value = "digests";
    } else {
        file->digests[file->digest_count++] = digest;
    }
    return true;
}

static bool read_pack(struct json *json, char *name, void *context) {
    (void)name;
    ((struct core_file *)context)->packs++;
    return json_skip(json);
}

static bool read_schema(struct json *json, struct core_file *file) {
    const char *begin = json->at + strspn(json->at, " \t\n\r");
    if (!json_skip(json)) {
        return false;
    }
    file->has_schema = true;
    if (json->at - begin != 1 || *begin != '0' + SCHEMA) {
        file->wrong_value = "schema";
    }
    return true;
}

static const char **text_field(struct core_file *file, const char *name) {
    const struct {
        const char *name;
        const char **text;
    } fields[] = {
        {"package", &file->core.package},      {"version", &file->core.version},
        {"build_id", &file->core.build_id},    {"interface_hash", &file->core.interface_hash},
        {"library", &file->core.library},      {"plugins_package", &file->plugins_package},
        {"distribution", &file->distribution},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strcmp(name, fields[i].name) == 0) {
            return fields[i].text;
        }
    }
    return NULL;
}

static bool read_text_field(struct json *json, struct core_file *file, const char *name) {
    char *text;
    if (!json_is(json, '"')) {
        file->wrong_value = name;
        return json_skip(json);
    }
    if (!json_text(json, &text)) {
        return false;
    }
    bool is_digest = strcmp(name, "build_id") == 0 || strcmp(name, "interface_hash") == 0;
    if (is_digest ? !is_hash(text) : !is_name(text)) {
        file->wrong_value = name;
    }
    *text_field(file, name) = text;
    return true;
}

static bool read_member(struct json *json, char *name, void *context) {
    static const char *const optional[] = {"packs", "digests"};
    struct core_file *file = context;
    if (strcmp(name, "schema") == 0) {
        return read_schema(json, file);
    }
    if (strcmp(name, "targets") == 0 && json_is(json, '{')) {
        file->core.target_count = 0;
        return json_object(json, read_target, file);
    }
    if (strcmp(name, "packs") == 0 && json_is(json, '{')) {
        file->has_packs = true;
        file->packs = 0;
        return json_object(json, read_pack, file);
    }
    if (strcmp(name, "digests") == 0 && json_is(json, '{')) {
        file->digest_count = 0;
        return json_object(json, read_digest, file);
    }
    /* A core that opens libraries has no packs, or null; cores of older releases have no digests.
     */
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) {
        if (strcmp(name, optional[i]) == 0 && !json_is(json, 'n')) {
            file->wrong_value = optional[i];
        }
    }
    /* Members that this reader doesn't need, and those of later versions, only have to be JSON. */
    return text_field(file, name) != NULL ? read_text_field(json, file, name) : json_skip(json);
}

static archsplit_status refuse(const struct core_file *file, const char *what, const char *which) {
    error_set("%s/core.json %s%s" AGAIN, file->path, what, which);
    return ARCHSPLIT_BAD_CORE;
}

static archsplit_status judge(struct core_file *file) {
    static const char *const names[] = {"package",        "version", "build_id",
                                        "interface_hash", "library", "plugins_package",
                                        "distribution"};
    if (!file->has_schema) {
        return refuse(file, "has no ", "schema");
    }
    if (file->wrong_value != NULL) {
        return refuse(file, "has another value than this loader knows as ", file->wrong_value);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (*text_field(file, names[i]) == NULL) {
            return refuse(file, "has no ", names[i]);
        }
    }
    if (file->has_packs) {
        return file->packs > 0 ? ARCHSPLIT_OK : refuse(file, "has no pack in ", "packs");
    }
    if (file->wrong_target != NULL) {
        return refuse(file, "has an unknown target: ", file->wrong_target);
    }
    return file->core.target_count > 0 ? ARCHSPLIT_OK : refuse(file, "has no ", "targets");
}

/* Read the bytes of core.json, and put a NUL behind them. */
static archsplit_status read_bytes(struct core_file *file, size_t *size) {
    char *path;
    if (asprintf(&path, "%s/core.json", file->path) < 0) {
        return error_no_memory();
    }
    struct os_file open;
    int error = os_open(path, &open);
    free(path);
    if (error != 0) {
        error_append(" (%s/core.json)" AGAIN, file->path);
        return ARCHSPLIT_BAD_CORE;
    }
    archsplit_status status = ARCHSPLIT_OK;
    *size = open.size;
    if (open.size > MOST_BYTES) {
        status = refuse(file, "is too big", "");
    } else if ((file->bytes = calloc(1, open.size + 1)) == NULL) {
        status = error_no_memory();
    } else if (os_read(&open, 0, file->bytes, open.size) != 0) {
        status = refuse(file, "can't be read to its end", "");
    }
    os_close(&open);
    return status;
}

static archsplit_status parse(struct core_file *file, size_t size) {
    file->targets = calloc(MOST_TARGETS, sizeof *file->targets);
    if (file->targets == NULL) {
        return error_no_memory();
    }
    struct json json;
    if (!json_begin(&json, file->bytes, size) || !json_object(&json, read_member, file) ||
        !json_end(&json)) {
        error_set("%s/core.json is damaged (%s at byte %zu)" AGAIN, file->path, json.fault,
                  (size_t)(json.at - file->bytes));
        return ARCHSPLIT_BAD_CORE;
    }
    return judge(file);
}

/* The folder of the plugins lies beside the core's package: two folders up. */
static archsplit_status add_folders(struct core_file *file) {
    char *place = os_resolved(file->path);
    if (place == NULL) {
        return ARCHSPLIT_BAD_CORE;
    }
    if (file->has_packs && asprintf(&file->table, "%s/" ARCHSPLIT_TABLE_FILE, file->path) < 0) {
        file->table = NULL;
    }
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(place, '/');
        /* A core at the root of the file system: there is nothing above it. */
        place[slash == NULL ? 0 : slash - place] = '\0';
    }
    if (asprintf(&file->folder, "%s/%s", place, file->plugins_package) < 0) {
        file->folder = NULL;
    }
    free(place);
    bool is_complete = file->folder != NULL && (!file->has_packs || file->table != NULL);
    return is_complete ? ARCHSPLIT_OK : error_no_memory();
}

static archsplit_status fill(struct core_file *file) {
    size_t size = 0; /* not known to be set when a sanitizer is compiled in */
    archsplit_status status = read_bytes(file, &size);
    if (status == ARCHSPLIT_OK) {
        status = parse(file, size);
    }
    return status == ARCHSPLIT_OK ? add_folders(file) : status;
}

archsplit_status core_read(const char *folder, archsplit_core **core) {
    if (folder == NULL || core == NULL) {
        return error_bad_argument("the folder of core.json, and where to put the core, are needed");
    }
    *core = NULL;
    struct core_file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        return error_no_memory();
    }
    file->path = folder;
    archsplit_status status = fill(file);
    if (status != ARCHSPLIT_OK) {
        core_free(&file->core);
        return status;
    }
    file->folders[0] = file->folder;
    file->core.size = sizeof file->core;
    file->core.folders = file->folders;
    file->core.table = file->table;
    file->digests[file->digest_count] = NULL;
    file->core.digests = file->digest_count > 0 ? file->digests : NULL;
    file->core.targets = file->has_packs ? NULL : file->targets;
    file->core.target_count = file->has_packs ? 0 : file->core.target_count;
    file->path = NULL; /* it is the caller's */
    *core = &file->core;
    return ARCHSPLIT_OK;
}

void core_free(archsplit_core *core) {
    struct core_file *file = (struct core_file *)core;
    if (file == NULL) {
        return;
    }
    free(file->bytes);
    free(file->folder);
    free(file->table);
    free(file->targets);
    free(file);
}
