/* The part of os.h that is about memory, and about what is loaded. */
#define _GNU_SOURCE /* dl_iterate_phdr, AT_SECURE */

#include <errno.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include "error.h"
#include "os.h"

const uint8_t *os_map(const struct os_file *file) {
    void *bytes = mmap(NULL, (size_t)file->size, PROT_READ, MAP_SHARED, file->descriptor, 0);
    if (bytes == MAP_FAILED) {
        error_set("can't be mapped: %s", strerror(errno));
        return NULL;
    }
    return bytes;
}

void os_unmap(const uint8_t *bytes, uint64_t size) {
    munmap((void *)(uintptr_t)bytes, (size_t)size);
}

uint8_t *os_reserve(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        error_set("can't get %zu bytes of memory: %s", size, strerror(errno));
        return NULL;
    }
    return memory;
}

void os_protect(uint8_t *memory, size_t size) {
    mprotect(memory, size, PROT_READ);
}

bool os_elevated(void) {
    return getauxval(AT_SECURE) != 0;
}

bool os_privileged(void) {
    return os_elevated() || geteuid() == 0;
}

/* The function behind pthread_atfork; that one is linked into this library without marks for CET
 * and BTI, in glibc 2.17 (see os_linux.c). */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
                             void *object);
extern void *__dso_handle __attribute__((visibility("hidden")));

void os_at_fork(void (*child)(void)) {
    __register_atfork(NULL, NULL, child, __dso_handle);
}

uint32_t os_user(void) {
    return geteuid();
}

char *os_real_path(const char *folder) {
    char *resolved = realpath(folder, NULL);
    if (resolved == NULL) {
        error_set("%s can't be found: %s", folder, strerror(errno));
    }
    return resolved;
}

struct visit {
    bool (*visit)(const struct os_object *object, void *context);
    void *context;
};

static int visit_one(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    const struct visit *visit = data;
    const struct os_object object = {info->dlpi_name, info->dlpi_addr, info->dlpi_phdr,
                                     info->dlpi_phnum};
    return visit->visit(&object, visit->context) ? 1 : 0;
}

bool os_each_object(bool (*visit)(const struct os_object *object, void *context), void *context) {
    struct visit both = {visit, context};
    return dl_iterate_phdr(visit_one, &both) != 0;
}

struct copy {
    struct os_object *objects; /* NULL while they are only counted */
    size_t room, count;
};

static int copy_one(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct copy *copy = data;
    if (copy->objects == NULL) {
        copy->room++;
    } else if (copy->count < copy->room) {
        copy->objects[copy->count++] =
            (struct os_object){info->dlpi_name, info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum};
    }
    return 0;
}

size_t os_objects(struct os_object **objects) {
    struct copy copy = {NULL, 0, 0};
    dl_iterate_phdr(copy_one, &copy);
    *objects = copy.objects = malloc(copy.room * sizeof *copy.objects);
    if (copy.objects != NULL) {
        dl_iterate_phdr(copy_one, &copy);
    }
    return copy.count;
}

/* ld.so wrote the name under its own lock, of which the thread sanitizer knows nothing; `volatile`
 * keeps the loop from becoming a call that the sanitizer watches. */
__attribute__((noinline, no_sanitize("thread"))) bool os_object_path(const struct os_object *object,
                                                                     char path[OS_PATH_SIZE]) {
    const volatile char *name = object->name;
    size_t length = 0;
    while (length < OS_PATH_SIZE - 1 && name[length] != '\0') {
        path[length] = name[length];
        length++;
    }
    path[length] = '\0';
    return *path == '/' && length < OS_PATH_SIZE - 1;
}

/* Device and inode of what is mapped at two addresses, as /proc/self/maps has them; they are not
 * always what stat returns (btrfs, overlayfs), so a mapping is compared with another one. */
static bool same_mapped_file(uint64_t one, uint64_t other) {
    char line[512], files[2][64] = {"", ""};
    FILE *maps = fopen("/proc/self/maps", "re");
    bool begins = true;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        uint64_t start, end;
        char device[24], inode[24];
        if (begins && sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %23s %23s", &start, &end,
                             device, inode) == 4) {
            for (int i = 0; i < 2; i++) {
                uint64_t address = i == 0 ? one : other;
                if (address >= start && address < end) {
                    snprintf(files[i], sizeof files[i], "%s %s", device, inode);
                }
            }
        }
        begins = strchr(line, '\n') != NULL;
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return *files[0] == '\0' || *files[1] == '\0' || strcmp(files[0], files[1]) == 0;
}

bool os_is_mapped_from(const struct os_object *object, const struct os_file *file) {
    const ElfW(Phdr) *headers = object->headers;
    void *page = mmap(NULL, 1, PROT_READ, MAP_PRIVATE, file->descriptor, 0);
    bool same = true;
    for (uint16_t i = 0; page != MAP_FAILED && i < object->header_count; i++) {
        if (headers[i].p_type == PT_LOAD) {
            same = same_mapped_file((uint64_t)(uintptr_t)page, object->base + headers[i].p_vaddr);
            break;
        }
    }
    if (page != MAP_FAILED) {
        munmap(page, 1);
    }
    return same;
}

void os_write_error(const char *text) {
    const char *rest = text;
    for (size_t left = strlen(text); left > 0;) {
        ssize_t wrote = write(STDERR_FILENO, rest, left);
        if (wrote <= 0) {
            return;
        }
        rest += wrote;
        left -= (size_t)wrote;
    }
}

void os_exit(void) {
    _exit(1);
}
