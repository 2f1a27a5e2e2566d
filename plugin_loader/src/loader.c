/* The order of things: list candidates, read each descriptor, compare it with the core, ask for the
 * devices, choose, open. */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choose.h"
#include "descriptor.h"
#include "detail.h"
#include "device.h"
#include "os.h"

struct candidate {
    char *path;
    char *reason;
    archsplit_verdict verdict;
    struct os_file file; /* which file was read; it is no longer open */
    struct descriptor descriptor;
    _Atomic(void *) plugin;
};

struct archsplit_loader {
    char *package;
    char *version;
    char *library;
    uint8_t build_id[32];
    uint8_t interface_hash[32];
    uint32_t count;
    struct candidate *candidates;
    struct machine machine;
};

/* ---- comparing with the core ---- */

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
    detail_set("has the %s %s..., expected %s...; install core and plugin from one release", what,
               text[0], text[1]);
    return false;
}

static archsplit_verdict check_pin(const archsplit_loader *loader, const struct descriptor *found) {
    if (strcmp(found->package, loader->package) != 0) {
        detail_set("is a plugin of %s, expected one of %s", found->package, loader->package);
        return ARCHSPLIT_WRONG_PACKAGE;
    }
    if (strcmp(found->version, loader->version) != 0) {
        detail_set("is a plugin for %s %s, expected one for %s; install the plugin of this version",
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

static bool driver_knows(const archsplit_loader *loader, const struct candidate *candidate,
                         const archsplit_target *target) {
    return target_driver_knows(target, candidate->descriptor.cuda_version,
                               loader->machine.cuda_version);
}

static bool driver_knows_any(const archsplit_loader *loader, const struct candidate *candidate) {
    for (uint32_t i = 0; i < candidate->descriptor.target_count; i++) {
        if (driver_knows(loader, candidate, &candidate->descriptor.targets[i])) {
            return true;
        }
    }
    return false;
}

/* Whether an earlier accepted candidate has this target too. */
static const struct candidate *earlier_with(const archsplit_loader *loader, uint32_t index,
                                            const archsplit_target *target) {
    for (uint32_t i = 0; i < index; i++) {
        const struct candidate *other = &loader->candidates[i];
        for (uint32_t j = 0; j < other->descriptor.target_count; j++) {
            if (other->verdict == ARCHSPLIT_ACCEPTED &&
                target_equals(&other->descriptor.targets[j], target)) {
                return other;
            }
        }
    }
    return NULL;
}

static archsplit_verdict check_shadow(const archsplit_loader *loader, uint32_t index) {
    const struct candidate *candidate = &loader->candidates[index], *other = NULL;
    for (uint32_t i = 0; i < candidate->descriptor.target_count; i++) {
        other = earlier_with(loader, index, &candidate->descriptor.targets[i]);
        if (other == NULL) {
            return ARCHSPLIT_ACCEPTED;
        }
    }
    detail_set("is not used: %s comes first and is %s", other->path,
               os_same_file(&other->file, &candidate->file) ? "the same file" : "the same plugin");
    return ARCHSPLIT_SHADOWED;
}

/* What the driver and the other candidates make of one that matches the core. */
static archsplit_verdict check_use(const archsplit_loader *loader, uint32_t index) {
    const struct candidate *candidate = &loader->candidates[index];
    if (driver_knows_any(loader, candidate)) {
        return check_shadow(loader, index);
    }
    uint32_t toolkit = candidate->descriptor.cuda_version, driver = loader->machine.cuda_version;
    detail_set("is built with CUDA %u.%u, but the driver (%s) supports CUDA up to %u.%u; update the "
               "driver",
               toolkit / 1000, toolkit % 1000 / 10, loader->machine.driver_version, driver / 1000,
               driver % 1000 / 10);
    return ARCHSPLIT_DRIVER_TOO_OLD;
}

/* ---- finding candidates ---- */

static archsplit_status no_memory(void) {
    detail_set("out of memory");
    return ARCHSPLIT_NO_MEMORY;
}

/* Keep a verdict, with the detail as its reason. */
static archsplit_status judge(struct candidate *candidate, archsplit_verdict verdict) {
    candidate->verdict = verdict;
    if (verdict == ARCHSPLIT_ACCEPTED) {
        return ARCHSPLIT_OK;
    }
    candidate->reason = strdup(detail_text());
    return candidate->reason != NULL ? ARCHSPLIT_OK : no_memory();
}

/* Take over `path` as one more candidate; NULL when there is no memory. */
static struct candidate *add_candidate(archsplit_loader *loader, char *path) {
    size_t size = (loader->count + 1) * sizeof *loader->candidates;
    struct candidate *more = path != NULL ? realloc(loader->candidates, size) : NULL;
    if (more == NULL) {
        free(path);
        no_memory();
        return NULL;
    }
    loader->candidates = more;
    struct candidate *candidate = &more[loader->count++];
    memset(candidate, 0, sizeof *candidate);
    candidate->path = path;
    return candidate;
}

/* dlopen searches for a name without a slash, and replaces some words behind a dollar sign: it
 * would open another file than the one that was checked. */
static bool is_opened_as_read(const char *path) {
    return strchr(path, '/') != NULL && strstr(path, "$ORIGIN") == NULL &&
           strstr(path, "$LIB") == NULL && strstr(path, "$PLATFORM") == NULL &&
           strstr(path, "${") == NULL;
}

static archsplit_verdict read_candidate(const archsplit_loader *loader, struct candidate *candidate,
                                        bool in_folder) {
    if (!is_opened_as_read(candidate->path)) {
        detail_set("can't be opened by this path: it needs a folder, and no ${}, $ORIGIN, $LIB or "
                   "$PLATFORM");
        return ARCHSPLIT_UNREADABLE;
    }
    int error = os_open(candidate->path, &candidate->file);
    if (error == ENOENT && in_folder) {
        detail_set("is missing from its folder; install the plugin again or remove the folder");
        return ARCHSPLIT_MISSING;
    }
    if (error != 0) {
        return ARCHSPLIT_UNREADABLE;
    }
    archsplit_verdict verdict = descriptor_read(&candidate->file, &candidate->descriptor);
    os_close(&candidate->file);
    if (verdict != ARCHSPLIT_ACCEPTED) {
        memset(&candidate->descriptor, 0, sizeof candidate->descriptor);
        return verdict;
    }
    return check_pin(loader, &candidate->descriptor);
}

static archsplit_status add_file(archsplit_loader *loader, char *path, bool in_folder) {
    struct candidate *candidate = add_candidate(loader, path);
    if (candidate == NULL) {
        return ARCHSPLIT_NO_MEMORY;
    }
    return judge(candidate, read_candidate(loader, candidate, in_folder));
}

static char *join(const char *folder, const char *name) {
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    if (path != NULL) {
        snprintf(path, size, "%s/%s", folder, name);
    }
    return path;
}

static archsplit_status add_unreadable(archsplit_loader *loader, const char *folder, int error) {
    struct candidate *candidate = add_candidate(loader, strdup(folder));
    if (candidate == NULL) {
        return ARCHSPLIT_NO_MEMORY;
    }
    detail_set("can't be listed: %s; make the folder readable for this user", strerror(error));
    return judge(candidate, ARCHSPLIT_UNREADABLE);
}

/* Whatever plugins lie in one `cuda` folder; that there is no such folder is the normal case. */
static archsplit_status add_listed(archsplit_loader *loader, const char *folder) {
    char **names;
    size_t count;
    int error = os_list(folder, &names, &count);
    if (error != 0) {
        bool absent = error == ENOENT || error == ENOTDIR;
        return absent ? ARCHSPLIT_OK : add_unreadable(loader, folder, error);
    }
    archsplit_status status = ARCHSPLIT_OK;
    for (size_t i = 0; status == ARCHSPLIT_OK && i < count; i++) {
        char *plugin = join(folder, names[i]);
        char *path = plugin != NULL ? join(plugin, loader->library) : NULL;
        free(plugin);
        status = add_file(loader, path, true);
    }
    os_free_names(names, count);
    return status;
}

static archsplit_status find_candidates(archsplit_loader *loader, const archsplit_core *core) {
    archsplit_status status = ARCHSPLIT_OK;
    for (const char *const *file = core->files; status == ARCHSPLIT_OK && file && *file; file++) {
        status = add_file(loader, strdup(*file), false);
    }
    for (const char *const *each = core->folders; status == ARCHSPLIT_OK && each && *each; each++) {
        char *folder = join(*each, "cuda");
        status = folder != NULL ? add_listed(loader, folder) : no_memory();
        free(folder);
    }
    return status;
}

/* ---- the loader's life ---- */

static archsplit_status bad_argument(const char *what) {
    detail_set("%s", what);
    return ARCHSPLIT_BAD_ARGUMENT;
}

static archsplit_status take_core(archsplit_loader *loader, const archsplit_core *core) {
    if (core->package == NULL || core->version == NULL || core->library == NULL) {
        return bad_argument("a core needs a package, a version and a library");
    }
    if (!parse_hash(core->build_id, loader->build_id) ||
        !parse_hash(core->interface_hash, loader->interface_hash)) {
        return bad_argument("a core's build_id and interface_hash are 64 hexadecimal digits");
    }
    loader->package = strdup(core->package);
    loader->version = strdup(core->version);
    loader->library = strdup(core->library);
    bool complete = loader->package && loader->version && loader->library;
    return complete ? ARCHSPLIT_OK : no_memory();
}

static archsplit_status fill(archsplit_loader *loader, const archsplit_core *core) {
    archsplit_status status = take_core(loader, core);
    if (status == ARCHSPLIT_OK) {
        status = find_candidates(loader, core);
    }
    if (status == ARCHSPLIT_OK && (core->flags & ARCHSPLIT_SKIP_DEVICES) == 0) {
        machine_detect(&loader->machine);
    } else {
        loader->machine.state = ARCHSPLIT_DRIVER_NOT_ASKED;
        snprintf(loader->machine.reason, MAX_NOTE, "devices were not asked for");
    }
    for (uint32_t i = 0; status == ARCHSPLIT_OK && i < loader->count; i++) {
        if (loader->candidates[i].verdict == ARCHSPLIT_ACCEPTED) {
            status = judge(&loader->candidates[i], check_use(loader, i));
        }
    }
    return status;
}

archsplit_status archsplit_loader_create(const archsplit_core *core, archsplit_loader **loader) {
    if (core == NULL || loader == NULL || core->size < sizeof *core) {
        return bad_argument("a core is needed, with its size set");
    }
    *loader = calloc(1, sizeof **loader);
    if (*loader == NULL) {
        return no_memory();
    }
    archsplit_status status = fill(*loader, core);
    if (status != ARCHSPLIT_OK) {
        archsplit_loader_destroy(*loader);
        *loader = NULL;
    }
    return status;
}

void archsplit_loader_destroy(archsplit_loader *loader) {
    if (loader == NULL) {
        return;
    }
    for (uint32_t i = 0; i < loader->count; i++) {
        free(loader->candidates[i].path);
        free(loader->candidates[i].reason);
    }
    free(loader->candidates);
    free(loader->package);
    free(loader->version);
    free(loader->library);
    free(loader);
}

/* ---- telling ---- */

/* Copy a struct as far as the caller's reaches; both begin with their size. */
static archsplit_status give(void *to, const void *from, uint32_t known) {
    uint32_t size = 0;
    if (to != NULL) {
        memcpy(&size, to, sizeof size);
    }
    if (size < sizeof size) {
        return bad_argument("a struct is needed, with its size set");
    }
    size = size < known ? size : known;
    memcpy(to, from, size);
    memcpy(to, &size, sizeof size);
    return ARCHSPLIT_OK;
}

archsplit_status archsplit_loader_summary(const archsplit_loader *loader,
                                          archsplit_summary *summary) {
    const struct machine *machine = &loader->machine;
    const archsplit_summary known = {
        .driver_state = machine->state,
        .driver_reason = machine->reason,
        .driver_version = machine->driver_version,
        .cuda_version = machine->cuda_version,
        .device_count = machine->device_count,
        .candidate_count = loader->count,
        .note_count = machine->note_count,
    };
    return give(summary, &known, sizeof known);
}

archsplit_status archsplit_loader_candidate(const archsplit_loader *loader, uint32_t index,
                                            archsplit_candidate *candidate) {
    if (index >= loader->count) {
        return bad_argument("there is no candidate of this number");
    }
    const struct candidate *found = &loader->candidates[index];
    const archsplit_candidate known = {
        .verdict = found->verdict,
        .path = found->path,
        .reason = found->reason != NULL ? found->reason : "",
        .package = found->descriptor.package,
        .version = found->descriptor.version,
        .targets = found->descriptor.targets,
        .target_count = found->descriptor.target_count,
        .cuda_version = found->descriptor.cuda_version,
    };
    return give(candidate, &known, sizeof known);
}

static archsplit_status find_device(const archsplit_loader *loader, uint32_t index,
                                    const struct device **device) {
    const struct machine *machine = &loader->machine;
    if (machine->state != ARCHSPLIT_DRIVER_READY) {
        detail_set("there is no device %u: %s", index, machine->reason);
        return ARCHSPLIT_NO_DEVICE;
    }
    if (index >= machine->device_count) {
        detail_set("there is no device %u: CUDA shows %u to this process, counted from 0", index,
                   machine->device_count);
        return ARCHSPLIT_NO_DEVICE;
    }
    *device = &machine->devices[index];
    return ARCHSPLIT_OK;
}

archsplit_status archsplit_loader_device(const archsplit_loader *loader, uint32_t index,
                                         archsplit_device *device) {
    const struct device *found;
    archsplit_status status = find_device(loader, index, &found);
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    const archsplit_device known = {
        .major = found->capability.major,
        .minor = found->capability.minor,
        .nvml_index = found->nvml_index,
        .name = found->name,
        .uuid = found->uuid,
        .pci_bus_id = found->pci_bus_id,
    };
    return give(device, &known, sizeof known);
}

const char *archsplit_loader_note(const archsplit_loader *loader, uint32_t index) {
    return index < loader->machine.note_count ? loader->machine.notes[index] : NULL;
}

const char *archsplit_last_error(void) {
    return detail_text();
}

const char *archsplit_verdict_name(uint32_t verdict) {
    static const char *const names[] = {
        [ARCHSPLIT_ACCEPTED] = "accepted",
        [ARCHSPLIT_SHADOWED] = "shadowed",
        [ARCHSPLIT_UNREADABLE] = "unreadable",
        [ARCHSPLIT_MISSING] = "missing",
        [ARCHSPLIT_NOT_ELF] = "not-elf",
        [ARCHSPLIT_WRONG_MACHINE] = "wrong-machine",
        [ARCHSPLIT_TRUNCATED] = "truncated",
        [ARCHSPLIT_NO_DESCRIPTOR] = "no-descriptor",
        [ARCHSPLIT_MALFORMED] = "malformed",
        [ARCHSPLIT_WRONG_CONTRACT] = "wrong-contract",
        [ARCHSPLIT_WRONG_SHAPE] = "wrong-shape",
        [ARCHSPLIT_WRONG_PACKAGE] = "wrong-package",
        [ARCHSPLIT_WRONG_VERSION] = "wrong-version",
        [ARCHSPLIT_WRONG_BUILD] = "wrong-build",
        [ARCHSPLIT_WRONG_INTERFACE] = "wrong-interface",
        [ARCHSPLIT_DRIVER_TOO_OLD] = "driver-too-old",
    };
    return verdict < sizeof names / sizeof *names ? names[verdict] : "unknown";
}

/* ---- choosing and opening ---- */

/* What there is instead of a plugin that serves `whom`. */
static archsplit_status no_plugin(const archsplit_loader *loader, const char *whom) {
    detail_set("no plugin of %s %s serves %s", loader->package, loader->version, whom);
    if (loader->count == 0) {
        detail_append("; no plugin was found");
    }
    for (uint32_t i = 0; i < loader->count; i++) {
        const struct candidate *candidate = &loader->candidates[i];
        detail_append("\n  %s", candidate->path);
        if (candidate->verdict != ARCHSPLIT_ACCEPTED) {
            detail_append(" %s", candidate->reason);
            continue;
        }
        detail_append(" serves other GPUs:");
        for (uint32_t j = 0; j < candidate->descriptor.target_count; j++) {
            const archsplit_target *target = &candidate->descriptor.targets[j];
            detail_append(" %s%s", target_name(target).text,
                          driver_knows(loader, candidate, target) ? ""
                                                                  : " (newer than the driver)");
        }
    }
    return ARCHSPLIT_NO_PLUGIN;
}

static archsplit_status choose(const archsplit_loader *loader, struct capability capability,
                               const char *whom, archsplit_choice *choice) {
    const archsplit_target *best = NULL;
    for (uint32_t i = 0; i < loader->count; i++) {
        const struct candidate *candidate = &loader->candidates[i];
        for (uint32_t j = 0; j < candidate->descriptor.target_count; j++) {
            const archsplit_target *target = &candidate->descriptor.targets[j];
            if (candidate->verdict == ARCHSPLIT_ACCEPTED && target_runs_on(target, capability) &&
                driver_knows(loader, candidate, target) &&
                (best == NULL || target_is_better(target, best))) {
                best = target;
                choice->candidate = i;
                choice->target = *target;
            }
        }
    }
    return best != NULL ? ARCHSPLIT_OK : no_plugin(loader, whom);
}

static archsplit_status choose_capability(const archsplit_loader *loader,
                                          struct capability capability, archsplit_choice *choice) {
    char whom[64];
    snprintf(whom, sizeof whom, "capability %u.%u", capability.major, capability.minor);
    return choose(loader, capability, whom, choice);
}

archsplit_status archsplit_loader_choose(const archsplit_loader *loader, uint32_t major,
                                         uint32_t minor, archsplit_choice *choice) {
    archsplit_choice known = {0};
    archsplit_status status =
        choose_capability(loader, (struct capability){major, minor}, &known);
    return status == ARCHSPLIT_OK ? give(choice, &known, sizeof known) : status;
}

static archsplit_status open_candidate(struct candidate *candidate, void **plugin) {
    *plugin = atomic_load(&candidate->plugin);
    if (*plugin != NULL) {
        return ARCHSPLIT_OK;
    }
    struct os_file now;
    if (os_open(candidate->path, &now) != 0) {
        detail_append(" (%s)", candidate->path);
        return ARCHSPLIT_OPEN_FAILED;
    }
    os_close(&now);
    if (!os_unchanged(&candidate->file, &now)) {
        detail_set("%s changed since it was read; start again", candidate->path);
        return ARCHSPLIT_OPEN_FAILED;
    }
    /* Racing threads get the same handle from dlopen, so either may be kept. */
    *plugin = os_library_open(candidate->path);
    atomic_store(&candidate->plugin, *plugin);
    return *plugin != NULL ? ARCHSPLIT_OK : ARCHSPLIT_OPEN_FAILED;
}

archsplit_status archsplit_loader_open(archsplit_loader *loader, uint32_t device, void **plugin) {
    const struct device *found;
    archsplit_choice choice;
    archsplit_status status = find_device(loader, device, &found);
    if (status == ARCHSPLIT_OK) {
        char whom[192];
        snprintf(whom, sizeof whom, "device %u, %s (capability %u.%u)", device, found->name,
                 found->capability.major, found->capability.minor);
        status = choose(loader, found->capability, whom, &choice);
    }
    return status == ARCHSPLIT_OK ? open_candidate(&loader->candidates[choice.candidate], plugin)
                                  : status;
}

archsplit_status archsplit_loader_open_for_capability(archsplit_loader *loader, uint32_t major,
                                                      uint32_t minor, void **plugin) {
    archsplit_choice choice;
    archsplit_status status =
        choose_capability(loader, (struct capability){major, minor}, &choice);
    return status == ARCHSPLIT_OK ? open_candidate(&loader->candidates[choice.candidate], plugin)
                                  : status;
}

archsplit_status archsplit_plugin_symbol(void *plugin, const char *name, void **address) {
    *address = os_library_symbol(plugin, name);
    return *address != NULL ? ARCHSPLIT_OK : ARCHSPLIT_NO_SYMBOL;
}
