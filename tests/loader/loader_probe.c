/* Calls the loader as a C program does and prints what it says, for tests to read.
 *
 *     loader_probe [FOLDER...] [--file FILE] [--skip] [--open DEVICE] [--capability MAJOR MINOR]
 *                  [--threads COUNT] [--wait] [--late] [--silent]
 *
 * --late asks what was found after all else, --silent never does.
 *
 * The core is vecsort 1.2.3 with a build id of 11... and an interface hash of 22... */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archsplit/plugin_loader.h"

enum { MAX_PATHS = 32, MAX_THREADS = 16 };

#define FOUR(digits) digits digits digits digits
static const char build_id[] = FOUR("1111111111111111");
static const char interface_hash[] = FOUR("2222222222222222");

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
    struct request request = {.device = -1};
    request.core = (archsplit_core){
        .size = sizeof request.core,
        .package = "vecsort",
        .version = "1.2.3",
        .build_id = build_id,
        .interface_hash = interface_hash,
        .library = "libvecsort.so",
        .folders = request.folders,
        .files = request.files,
    };
    parse(count, arguments, &request);
    archsplit_loader *loader;
    if (archsplit_loader_create(&request.core, &loader) != ARCHSPLIT_OK) {
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
    return status;
}
