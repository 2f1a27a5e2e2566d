#include "nvml.h"

#include <stdio.h>
#include <string.h>

#include "error.h"
#include "os.h"

/* The needed part of NVML, declared here so that no NVIDIA header is. Source: NVML API reference.
 */
enum { NVML_SUCCESS = 0, NVML_DRIVER_NOT_LOADED = 9, NVML_GPU_NOT_FOUND = 28 };
enum { NVML_MIG_ENABLED = 1 };

typedef void *nvml_device;

struct nvml_pci_info {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_text)(int);
    int (*driver_version)(char *, unsigned int);
    int (*cuda_version)(int *);
    int (*count)(unsigned int *);
    int (*device)(unsigned int, nvml_device *);
    int (*capability)(nvml_device, int *, int *);
    int (*uuid)(nvml_device, char *, unsigned int);
    int (*name)(nvml_device, char *, unsigned int);
    int (*pci)(nvml_device, struct nvml_pci_info *);
    int (*mig_mode)(nvml_device, unsigned int *, unsigned int *); /* from here on: R450 and later */
    int (*mig_count)(nvml_device, unsigned int *);
    int (*mig_device)(nvml_device, unsigned int, nvml_device *);
};

static const char *const names[] = {
    "nvmlInit_v2",
    "nvmlShutdown",
    "nvmlErrorString",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
};

enum { NAME_COUNT = sizeof names / sizeof *names, NEEDED_COUNT = NAME_COUNT - 3 };

_Static_assert(sizeof(struct nvml) == NAME_COUNT * sizeof(void *), "a name for every function");

/* Look up every function; the later ones may be missing. */
static bool bind_functions(struct nvml *nvml, void *library, struct machine *machine) {
    for (int i = 0; i < NAME_COUNT; i++) {
        /* ISO C has no cast from an object's address to a function's; POSIX promises the bytes. */
        void *address = os_library_symbol(library, names[i]);
        memcpy((char *)nvml + (size_t)i * sizeof address, &address, sizeof address);
        if (address == NULL && i < NEEDED_COUNT) {
            machine_fail(
                machine, ARCHSPLIT_DRIVER_FAILED,
                "libnvidia-ml.so.1 has no %s, so it is of a driver older than R450; update the "
                "driver",
                names[i]);
            return false;
        }
    }
    return true;
}

/* True if a call went well; else, the notes say what CUDA users should know of it. */
static bool check(const struct nvml *nvml, struct machine *machine, int status, const char *what) {
    if (status != NVML_SUCCESS) {
        machine_note(machine, "NVML can't tell %s: %s", what, nvml->error_text(status));
    }
    return status == NVML_SUCCESS;
}

/* The instances of a GPU in MIG mode, which have its name, capability and address. */
static void add_instances(const struct nvml *nvml, struct machine *machine, nvml_device handle,
                          const struct device *gpu) {
    unsigned int count = 0;
    if (nvml->mig_count == NULL || nvml->mig_device == NULL ||
        nvml->mig_count(handle, &count) != NVML_SUCCESS) {
        count = 0;
    }
    for (unsigned int i = 0; i < count && i <= MAX_DEVICES; i++) {
        nvml_device part;
        char uuid[sizeof gpu->uuid];
        struct device *device = NULL;
        if (nvml->mig_device(handle, i, &part) == NVML_SUCCESS &&
            nvml->uuid(part, uuid, sizeof uuid) == NVML_SUCCESS) {
            device = machine_add(machine);
        }
        if (device != NULL) {
            *device = *gpu;
            device->instance = true;
            device->partitioned = false;
            memcpy(device->uuid, uuid, sizeof uuid);
        }
    }
}

static void add_gpu(const struct nvml *nvml, struct machine *machine, unsigned int index) {
    char what[64];
    int major = 0, minor = 0;
    nvml_device handle = NULL;
    snprintf(what, sizeof what, "the capability of GPU %u, which is left out", index);
    int status = nvml->device(index, &handle);
    if (status == NVML_SUCCESS) {
        status = nvml->capability(handle, &major, &minor);
    }
    struct device *gpu = check(nvml, machine, status, what) ? machine_add(machine) : NULL;
    if (gpu == NULL) {
        return;
    }
    gpu->nvml_index = index;
    gpu->capability = (struct capability){(uint32_t)major, (uint32_t)minor};
    if (nvml->name(handle, gpu->name, sizeof gpu->name) != NVML_SUCCESS) {
        snprintf(gpu->name, sizeof gpu->name, "GPU %u", index);
    }
    snprintf(what, sizeof what, "the UUID of GPU %u", index);
    check(nvml, machine, nvml->uuid(handle, gpu->uuid, sizeof gpu->uuid), what);
    struct nvml_pci_info pci;
    snprintf(what, sizeof what, "the PCI address of GPU %u", index);
    if (check(nvml, machine, nvml->pci(handle, &pci), what)) {
        memcpy(gpu->pci, (uint32_t[]){pci.domain, pci.bus, pci.device}, sizeof gpu->pci);
        memcpy(gpu->pci_bus_id, pci.bus_id, sizeof gpu->pci_bus_id - 1);
    }
    unsigned int mode = 0, pending = 0;
    gpu->partitioned = nvml->mig_mode != NULL &&
                       nvml->mig_mode(handle, &mode, &pending) == NVML_SUCCESS &&
                       mode == NVML_MIG_ENABLED;
    if (gpu->partitioned) {
        add_instances(nvml, machine, handle, gpu);
    }
}

static void query(const struct nvml *nvml, struct machine *machine) {
    unsigned int count = 0;
    int version = 0;
    char *driver = machine->driver_version;
    check(nvml, machine, nvml->driver_version(driver, sizeof machine->driver_version),
          "the driver's version");
    if (check(nvml, machine, nvml->cuda_version(&version), "the driver's CUDA version")) {
        machine->cuda_version = (uint32_t)version;
    }
    int status = nvml->count(&count);
    if (status != NVML_SUCCESS) {
        machine_fail(machine, ARCHSPLIT_DRIVER_FAILED, "NVML can't count the GPUs: %s",
                     nvml->error_text(status));
        return;
    }
    for (unsigned int i = 0; i < count && i <= MAX_DEVICES; i++) {
        add_gpu(nvml, machine, i);
    }
    if (count == 0) {
        machine_fail(machine, ARCHSPLIT_DRIVER_NO_GPU, "the driver (%s) is there, but no GPU",
                     driver);
    } else if (machine->device_count == 0) {
        machine_fail(machine, ARCHSPLIT_DRIVER_FAILED, "%s",
                     machine->notes[machine->note_count - 1]);
    }
}

static void init_and_query(const struct nvml *nvml, struct machine *machine) {
    int status = nvml->init();
    if (status == NVML_SUCCESS) {
        query(nvml, machine);
        nvml->shutdown();
    } else if (status == NVML_DRIVER_NOT_LOADED || status == NVML_GPU_NOT_FOUND) {
        machine_fail(machine, ARCHSPLIT_DRIVER_MISSING,
                     "libnvidia-ml.so.1 is there, but the driver is not running: %s",
                     nvml->error_text(status));
    } else {
        machine_fail(machine, ARCHSPLIT_DRIVER_FAILED, "NVML can't start: %s",
                     nvml->error_text(status));
    }
}

/* In WSL the driver's libraries are Windows' own, in a folder that ld.so finds by the
 * distribution, if at all. */
#ifndef NVML
#define NVML "libnvidia-ml.so.1"
#endif
#ifndef WSL_NVML
#define WSL_NVML "/usr/lib/wsl/lib/libnvidia-ml.so.1"
#endif

bool nvml_detect(struct machine *machine) {
    struct nvml nvml;
    /* Closing it again would gain nothing: other libraries of the process use it too. */
    void *library = os_library_open(NVML);
    if (library == NULL && os_exists(WSL_NVML)) {
        library = os_library_open(WSL_NVML);
    }
    if (library != NULL && bind_functions(&nvml, library, machine)) {
        init_and_query(&nvml, machine);
    }
    return library != NULL;
}
