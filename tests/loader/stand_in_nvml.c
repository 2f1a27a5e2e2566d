/* A stand-in for NVIDIA's libnvidia-ml.so.1 in tests; it knows no GPU but those it is told of.
 *
 * STAND_IN_GPUS   one GPU for each ';': "9.0" its capability, "@5" its PCI bus (default: its number
 *                 plus 1), "/2" MIG mode with two instances: "8.0@7/2"
 * STAND_IN_FAIL   "nvmlDeviceGetName=3", or for GPU 1 only "nvmlDeviceGetName=3:1"; ','-separated
 * STAND_IN_CUDA   the newest CUDA of the driver, default 13000
 * STAND_IN_NAME   the name of each GPU, before its number, default Stand-in GPU
 * STAND_IN_COUNT  how many GPUs it says there are, whatever is true
 * STAND_IN_LOG    a file that gets a line when it is loaded, and for each init and shutdown
 * STAND_IN_SLEEP  how many seconds init takes
 */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_FOUND = 6, MAX_GPUS = 160 };

struct pci_info {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct gpu {
    int major, minor, instances; /* -1: not in MIG mode */
    unsigned int bus;
};

/* A handle is the GPU's number + 1, and 256 times the instance's number + 1. */
static unsigned int gpu_of(void *handle) {
    return (unsigned int)((uintptr_t)handle & 255) - 1;
}

static unsigned int parse(struct gpu *gpus) {
    const char *text = getenv("STAND_IN_GPUS");
    unsigned int count = 0;
    while (text != NULL && *text != '\0' && count < MAX_GPUS) {
        struct gpu gpu = {0, 0, -1, count + 1};
        int used = 0;
        sscanf(text, "%d.%d%n", &gpu.major, &gpu.minor, &used);
        text += used;
        for (used = 0; sscanf(text, "@%u%n", &gpu.bus, &used) == 1; used = 0) {
            text += used;
        }
        for (used = 0; sscanf(text, "/%d%n", &gpu.instances, &used) == 1; used = 0) {
            text += used;
        }
        gpus[count++] = gpu;
        text += *text == ';';
    }
    return count;
}

static struct gpu look_up(void *handle) {
    struct gpu gpus[MAX_GPUS];
    parse(gpus);
    return gpus[gpu_of(handle)];
}

static int failure(const char *name, int gpu) {
    const char *text = getenv("STAND_IN_FAIL");
    size_t length = strlen(name);
    for (; text != NULL; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL) {
        int code = 0, only = -1;
        if (strncmp(text, name, length) == 0 && sscanf(text + length, "=%d:%d", &code, &only) > 0 &&
            (only < 0 || only == gpu)) {
            return code;
        }
    }
    return OK;
}

#define FAIL_IF_TOLD(gpu)                                                                          \
    if (failure(__func__, gpu) != OK) {                                                            \
        return failure(__func__, gpu);                                                             \
    }

static void log_line(const char *line) {
    const char *path = getenv("STAND_IN_LOG");
    FILE *file = path != NULL ? fopen(path, "a") : NULL;
    if (file != NULL) {
        fprintf(file, "%s\n", line);
        fclose(file);
    }
}

__attribute__((constructor)) static void begin(void) {
    log_line("load");
}

int nvmlInit_v2(void) {
    FAIL_IF_TOLD(-1)
    log_line("init");
    const char *seconds = getenv("STAND_IN_SLEEP");
    sleep(seconds != NULL ? (unsigned int)atoi(seconds) : 0);
    return OK;
}

int nvmlShutdown(void) {
    FAIL_IF_TOLD(-1)
    log_line("shutdown");
    return OK;
}

const char *nvmlErrorString(int code) {
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "stand-in error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *text, unsigned int size) {
    FAIL_IF_TOLD(-1)
    snprintf(text, size, "580.95.05");
    return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    FAIL_IF_TOLD(-1)
    const char *text = getenv("STAND_IN_CUDA");
    *version = text != NULL ? atoi(text) : 13000;
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    FAIL_IF_TOLD(-1)
    struct gpu gpus[MAX_GPUS];
    const char *text = getenv("STAND_IN_COUNT");
    *count = text != NULL ? (unsigned int)strtoul(text, NULL, 10) : parse(gpus);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    FAIL_IF_TOLD((int)index)
    *handle = (void *)(uintptr_t)(index + 1);
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    FAIL_IF_TOLD((int)gpu_of(handle))
    struct gpu gpu = look_up(handle);
    *major = gpu.major;
    *minor = gpu.minor;
    return OK;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned int size) {
    FAIL_IF_TOLD((int)gpu_of(handle))
    unsigned int instance = (unsigned int)((uintptr_t)handle >> 8);
    if (instance == 0) {
        snprintf(text, size, "GPU-a%07x-1111-2222-3333-444444444444", gpu_of(handle));
    } else {
        snprintf(text, size, "MIG-b%03x%04x-1111-2222-3333-444444444444", gpu_of(handle), instance);
    }
    return OK;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned int size) {
    FAIL_IF_TOLD((int)gpu_of(handle))
    const char *name = getenv("STAND_IN_NAME");
    snprintf(text, size, "%s %u", name != NULL ? name : "Stand-in GPU", gpu_of(handle));
    return OK;
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci_info *info) {
    FAIL_IF_TOLD((int)gpu_of(handle))
    memset(info, 0, sizeof *info);
    info->bus = look_up(handle).bus;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    return OK;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMigMode(void *handle, unsigned int *mode, unsigned int *pending) {
    FAIL_IF_TOLD((int)gpu_of(handle))
    *mode = *pending = look_up(handle).instances >= 0;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned int *count) {
    FAIL_IF_TOLD((int)gpu_of(handle))
    *count = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned int index, void **part) {
    FAIL_IF_TOLD((int)gpu_of(handle))
    if ((int)index >= look_up(handle).instances) {
        return NOT_FOUND;
    }
    *part = (void *)((uintptr_t)handle | (uintptr_t)(index + 1) << 8);
    return OK;
}
#endif
