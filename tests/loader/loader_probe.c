/* Calls the loader as a C program does and prints what it says, for tests to read.
 *
 *     loader_probe [FOLDER...] [--file FILE] [--skip] [--open DEVICE] [--capability MAJOR MINOR]
 *                  [--threads COUNT] [--wait] [--late] [--silent]
 *
 * --late asks what was found after all else, --silent never does.
 *
 * The core is vecsort 1.2.3 with a build id of 11... and an interface hash of 22..., and has
 * plugins for each capability from 5.0 on. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../plugin_loader/src/sha256.h"
#include "archsplit/plugin_loader.h"

enum { MAX_PATHS = 32, MAX_THREADS = 16 };

/* The core's table, which is written to a file for the time of the call. */
struct table {
    archsplit_pack_head head;
    archsplit_descriptor descriptor;
    archsplit_target targets[ARCHSPLIT_MAX_TARGETS];
    char package[8], version[8];
    archsplit_pack_library library;
    char name[16];
};

static uint16_t add_targets(archsplit_target *targets) {
    static const uint16_t numbers[] = {50, 60, 61,  70,  75,  80,  86,  87,  88,
                                       89, 90, 100, 101, 103, 107, 110, 120, 121};
    uint16_t count = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        uint16_t major = numbers[i] / 10, minor = numbers[i] % 10;
        for (uint16_t kind = ARCHSPLIT_KIND_SASS; kind <= ARCHSPLIT_KIND_PTX; kind++) {
            targets[count++] = (archsplit_target){kind, major, minor, 0};
            if (major >= 9 && numbers[i] != 107) { /* there is room for 64 */
                targets[count++] = (archsplit_target){kind, major, minor, 'a'};
                targets[count++] = (archsplit_target){kind, major, minor, 'f'};
            }
        }
    }
    return count;
}

static void write_table(const char *path) {
    enum { DESCRIPTOR = offsetof(struct table, library) - offsetof(struct table, descriptor) };
    const size_t start = offsetof(struct table, descriptor);
    struct table table = {.package = "vecsort", .version = "1.2.3", .name = "libvecsort.so"};
    table.descriptor = (archsplit_descriptor){
        .fixed_size = sizeof table.descriptor,
        .total_size = DESCRIPTOR,
        .contract_major = ARCHSPLIT_CONTRACT_MAJOR,
        .shape = ARCHSPLIT_SHAPE_LIBRARY,
        .package_offset = (uint32_t)(offsetof(struct table, package) - start),
        .package_length = 7,
        .version_offset = (uint32_t)(offsetof(struct table, version) - start),
        .version_length = 5,
        .targets_offset = (uint32_t)(offsetof(struct table, targets) - start),
        .target_size = sizeof *table.targets,
        .target_count = add_targets(table.targets),
    };
    memset(table.descriptor.build_id, 0x11, sizeof table.descriptor.build_id);
    memset(table.descriptor.interface_hash, 0x22, sizeof table.descriptor.interface_hash);
    table.library =
        (archsplit_pack_library){sizeof table.library, 13, sizeof table.library, 13, 0, 0};
    table.head = (archsplit_pack_head){
        .magic = ARCHSPLIT_PACK_MAGIC,
        .head_size = sizeof table.head,
        .descriptor_size = DESCRIPTOR,
        .file_size = sizeof table,
        .index_size = sizeof table.library + sizeof table.name,
        .library_count = 1,
        .library_size = sizeof table.library,
        .container_size = sizeof(archsplit_pack_container),
        .image_size = sizeof(archsplit_pack_image),
    };
    const size_t hashed = offsetof(archsplit_pack_head, driver_version);
    sha256((const uint8_t *)&table + hashed, sizeof table - hashed, table.head.digest);
    FILE *file = fopen(path, "wb");
    fwrite(&table, sizeof table, 1, file);
    fclose(file);
}

struct request {
    archsplit_core core;
    const char *folders[MAX_PATHS + 1];
    const char *files[MAX_PATHS + 1];
    int device, threads, wait, late, silent;
    const char *major, *minor;
};

static void print_found(const archsplit_loader *loader) {
    archsplit_summary summary = {.size = sizeof summary};
    archsplit_loader_summary(loader, &summary);
    printf("driver %u cuda %u version [%s] reason [%s]\n", summary.driver_state,
           summary.cuda_version, summary.driver_version, summary.driver_reason);
    for (uint32_t i = 0; i < summary.note_count; i++) {
        printf("note %s\n", archsplit_loader_note(loader, i));
    }
    for (uint32_t i = 0; i < summary.device_count; i++) {
        archsplit_device device = {.size = sizeof device};
        archsplit_loader_device(loader, i, &device);
        printf("device %u: %u.%u nvml %u %s %s [%s]\n", i, device.major, device.minor,
               device.nvml_index, device.uuid, device.pci_bus_id, device.name);
    }
    for (uint32_t i = 0; i < summary.candidate_count; i++) {
        archsplit_candidate candidate = {.size = sizeof candidate};
        archsplit_loader_candidate(loader, i, &candidate);
        printf("candidate %s: %s %s\n", archsplit_verdict_name(candidate.verdict), candidate.path,
               candidate.reason);
    }
}

static int open_plugin(archsplit_loader *loader, const struct request *request, void **plugin) {
    archsplit_status status = ARCHSPLIT_OK;
    void *answer = NULL;
    if (request->major != NULL) {
        status = archsplit_loader_open_for_capability(loader, (uint32_t)atoi(request->major),
                                                      (uint32_t)atoi(request->minor), plugin);
    } else {
        status = archsplit_loader_open(loader, (uint32_t)request->device, plugin);
    }
    if (status == ARCHSPLIT_OK) {
        status = archsplit_plugin_symbol(*plugin, "stub_answer", &answer);
    }
    if (status == ARCHSPLIT_OK) {
        int (*function)(void);
        memcpy(&function, &answer, sizeof function);
        printf("opened, the answer is %d\n", function());
    } else {
        printf("failed with %d: %s\n", status, archsplit_last_error());
    }
    return (int)status;
}

struct racer {
    archsplit_loader *loader;
    const struct request *request;
    void *plugin;
    archsplit_summary summary;
};

static void *race(void *argument) {
    struct racer *racer = argument;
    archsplit_loader *own = NULL;
    if (archsplit_loader_create(&racer->request->core, &own) == ARCHSPLIT_OK) {
        open_plugin(own, racer->request, &racer->plugin);
        archsplit_loader_destroy(own);
    }
    open_plugin(racer->loader, racer->request, &racer->plugin);
    if (racer->request->late) {
        archsplit_loader_summary(racer->loader, &racer->summary);
    }
    return NULL;
}

static int run_race(archsplit_loader *loader, const struct request *request) {
    pthread_t threads[MAX_THREADS];
    struct racer racers[MAX_THREADS];
    for (int i = 0; i < request->threads; i++) {
        racers[i] = (struct racer){loader, request, NULL, {.size = sizeof racers[i].summary}};
        pthread_create(&threads[i], NULL, race, &racers[i]);
    }
    int same = 1;
    for (int i = 0; i < request->threads; i++) {
        pthread_join(threads[i], NULL);
        same = same && racers[i].plugin != NULL && racers[i].plugin == racers[0].plugin;
        same = same && racers[i].summary.driver_version == racers[0].summary.driver_version;
    }
    printf("all threads have %s plugin\n", same ? "the same" : "another");
    return !same;
}

static void parse(int count, char **arguments, struct request *request) {
    int folders = 0, files = 0;
    for (int i = 1; i < count; i++) {
        if (strcmp(arguments[i], "--file") == 0) {
            request->files[files++] = arguments[++i];
        } else if (strcmp(arguments[i], "--skip") == 0) {
            request->core.flags |= ARCHSPLIT_SKIP_DEVICES;
        } else if (strcmp(arguments[i], "--open") == 0) {
            request->device = atoi(arguments[++i]);
        } else if (strcmp(arguments[i], "--threads") == 0) {
            request->threads = atoi(arguments[++i]);
        } else if (strcmp(arguments[i], "--wait") == 0) {
            request->wait = 1;
        } else if (strcmp(arguments[i], "--late") == 0) {
            request->late = 1;
        } else if (strcmp(arguments[i], "--silent") == 0) {
            request->silent = 1;
        } else if (strcmp(arguments[i], "--capability") == 0) {
            request->major = arguments[++i];
            request->minor = arguments[++i];
        } else {
            request->folders[folders++] = arguments[i];
        }
    }
}

int main(int count, char **arguments) {
    char path[] = "/tmp/loader-probe-XXXXXX";
    close(mkstemp(path));
    write_table(path);
    struct request request = {.device = -1};
    request.core = (archsplit_core){
        .size = sizeof request.core,
        .table = path,
        .folders = request.folders,
        .files = request.files,
    };
    parse(count, arguments, &request);
    archsplit_loader *loader;
    archsplit_status created = archsplit_loader_create(&request.core, &loader);
    if (request.threads == 0) {
        unlink(path);
    }
    if (created != ARCHSPLIT_OK) {
        printf("can't create a loader: %s\n", archsplit_last_error());
        return 1;
    }
    if (!request.late && !request.silent) {
        print_found(loader);
    }
    if (request.wait) {
        fflush(stdout);
        getchar();
    }
    int status = 0;
    void *plugin;
    if (request.threads > 0) {
        status = run_race(loader, &request);
    } else if (request.device >= 0 || request.major != NULL) {
        status = open_plugin(loader, &request, &plugin);
    }
    if (request.late) {
        print_found(loader);
    }
    archsplit_loader_destroy(loader);
    if (request.threads > 0) {
        unlink(path);
    }
    return status;
}
