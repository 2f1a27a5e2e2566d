#include "procfs.h"

#include <stdio.h>
#include <string.h>

#include "os.h"

/* What a file has, up to a length that no file here reaches; "" when it can't be read. */
struct content {
    char text[2048];
};

static struct content read_text(const char *path) {
    struct content content = {{0}};
    struct os_file file;
    if (os_open(path, &file) == 0) {
        os_read_some(&file, content.text, sizeof content.text - 1);
        os_close(&file);
    }
    return content;
}

/* Copy what stands behind a label, from its first letter to the end of its line. */
static void take_field(const struct content *content, const char *label, char *to, size_t size) {
    const char *found = strstr(content->text, label);
    size_t length = 0;
    if (found != NULL) {
        found += strlen(label);
        found += strspn(found, " \t");
        length = strcspn(found, "\n");
        length = length < size ? length : size - 1;
        memcpy(to, found, length);
    }
    to[length] = '\0';
}

int proc_list(char ***addresses, size_t *count) {
    return os_list(PROC_NVIDIA "/gpus", addresses, count);
}

void proc_read(const char *address, struct proc_gpu *gpu) {
    char path[512];
    snprintf(path, sizeof path, "%s/gpus/%s/information", PROC_NVIDIA, address);
    struct content content = read_text(path);
    take_field(&content, "Model:", gpu->model, sizeof gpu->model);
    take_field(&content, "GPU UUID:", gpu->uuid, sizeof gpu->uuid);
    take_field(&content, "GPU Excluded:", gpu->excluded, sizeof gpu->excluded);
    take_field(&content, "Device Minor:", gpu->minor, sizeof gpu->minor);
    snprintf(gpu->file, sizeof gpu->file, "%s%s", DEV_NVIDIA, gpu->minor);
}

bool proc_is_given(const struct proc_gpu *gpu) {
    return strcmp(gpu->excluded, "Yes") != 0 && *gpu->minor != '\0' && os_exists(gpu->file);
}

struct device *proc_add(struct machine *machine, const struct proc_gpu *gpu, const char *address) {
    struct device *device = machine_add(machine);
    if (device != NULL) {
        device->nvml_index = machine->device_count - 1;
        memcpy(device->name, gpu->model, sizeof device->name);
        memcpy(device->uuid, gpu->uuid, sizeof device->uuid);
        snprintf(device->pci_bus_id, sizeof device->pci_bus_id, "%.31s", address);
        sscanf(address, "%x:%x:%x", &device->pci[0], &device->pci[1], &device->pci[2]);
    }
    return device;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ..." */
void proc_read_version(struct machine *machine) {
    struct content content = read_text(PROC_NVIDIA "/version");
    for (char *word = content.text; (word = strpbrk(word, "0123456789")) != NULL;) {
        size_t length = strspn(word, "0123456789.");
        if (memchr(word, '.', length) != NULL && length < sizeof machine->driver_version) {
            memcpy(machine->driver_version, word, length);
            return;
        }
        word += length;
    }
}
