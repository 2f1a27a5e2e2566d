/* Runs the loader again and again, and lets one allocation more go well each time.
 *
 *     failing_memory FOLDER                 make a loader of a core, ask it, and destroy it
 *     failing_memory FOLDER PLUGIN          open a plugin that has changed since it was read
 *     failing_memory FOLDER STUB LIBRARY    serve a split library, each time in a child
 *
 * An attempt may fail. It may leave no memory, no mapping and no descriptor, and the next one must
 * go well. Linked with the loader's sources and an option --wrap for each function below. */
#define _GNU_SOURCE /* asprintf */

#include <dlfcn.h>
#include <errno.h>
#include <sanitizer/lsan_interface.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "archsplit/plugin_loader.h"

enum { ROOM = 4096, NEVER = -1 };

/* What the loader has at one time. */
struct held {
    int blocks, mappings, descriptor;
};

/* Their addresses, in a form that the leak sanitizer takes for numbers. */
static uintptr_t blocks[ROOM];
static struct held now;
static int left = NEVER;

static int fails(void) {
    errno = ENOMEM;
    return left != NEVER && left-- == 0;
}

static void *keep(void *block) {
    for (int i = 0; i < ROOM; i++) {
        if (blocks[i] == 0) {
            blocks[i] = ~(uintptr_t)block;
            now.blocks++;
            return block;
        }
    }
    abort();
}

static void drop(const void *block) {
    for (int i = 0; block != NULL && i < ROOM; i++) {
        if (blocks[i] == ~(uintptr_t)block) {
            blocks[i] = 0;
            now.blocks--;
            return;
        }
    }
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
char *__real_realpath(const char *path, char *resolved);
void __real_free(void *block);
void *__real_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset);
int __real_munmap(void *at, size_t size);

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : keep(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : keep(__real_calloc(count, size));
}

void *__wrap_realloc(void *block, size_t size) {
    if (fails()) {
        return NULL;
    }
    drop(block);
    return keep(__real_realloc(block, size));
}

char *__wrap_strdup(const char *text) {
    return fails() ? NULL : keep(__real_strdup(text));
}

char *__wrap_strndup(const char *text, size_t size) {
    return fails() ? NULL : keep(__real_strndup(text, size));
}

char *__wrap_realpath(const char *path, char *resolved) {
    char *found = fails() ? NULL : __real_realpath(path, resolved);
    return found != NULL ? keep(found) : NULL;
}

int __wrap_asprintf(char **text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = fails() ? -1 : vasprintf(text, format, arguments);
    va_end(arguments);
    if (length >= 0) {
        keep(*text);
    }
    return length;
}

void __wrap_free(void *block) {
    drop(block);
    __real_free(block);
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    void *mapped = fails() ? MAP_FAILED : __real_mmap(at, size, protection, flags, file, offset);
    now.mappings += mapped != MAP_FAILED ? 1 : 0;
    return mapped;
}

int __wrap_munmap(void *at, size_t size) {
    now.mappings--;
    return __real_munmap(at, size);
}

/* What the loader holds, with the number that the next descriptor would have. */
static struct held measure(void) {
    now.descriptor = dup(0);
    close(now.descriptor);
    return now;
}

static int is_more(struct held after, struct held before) {
    return after.blocks != before.blocks || after.mappings != before.mappings ||
           after.descriptor != before.descriptor;
}

static archsplit_status ask(archsplit_loader *loader, const char *folder) {
    archsplit_summary summary = {.size = sizeof summary};
    archsplit_service service = {.size = sizeof service};
    archsplit_status status = archsplit_loader_summary(loader, &summary);
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    status = archsplit_loader_service(loader, 9, 0, &service);
    if (status == ARCHSPLIT_BAD_ARGUMENT) { /* a core of libraries */
        void *plugin;
        status = archsplit_loader_open(loader, 0, &plugin);
    } else if (status == ARCHSPLIT_OK) {
        status = archsplit_process_service(loader, folder, 9, 0, &service);
    }
    return status;
}

static archsplit_status use(const char *folder) {
    archsplit_core *core;
    archsplit_status status = archsplit_core_read(folder, &core);
    if (status != ARCHSPLIT_OK) {
        return status;
    }
    archsplit_loader *loader;
    status = archsplit_loader_create(core, &loader);
    if (status == ARCHSPLIT_OK) {
        status = ask(loader, folder);
        archsplit_loader_destroy(loader);
    }
    archsplit_core_free(core);
    return status;
}

/* Let number `attempt` of the allocations fail; return 1 if there are not so many. */
static int try_use(const char *folder, int attempt) {
    struct held before = measure();
    left = attempt;
    archsplit_status status = use(folder);
    int is_last = left != NEVER;
    left = NEVER;
    if (is_more(measure(), before)) {
        printf("attempt %d leaves %d blocks, %d mappings\n", attempt, now.blocks - before.blocks,
               now.mappings - before.mappings);
        exit(1);
    }
    if (is_last && status != ARCHSPLIT_OK) {
        printf("attempt %d: %s\n", attempt, archsplit_last_error());
        exit(1);
    }
    return is_last;
}

/* Serve a library once more than is needed: from the second call on, nothing is kept. */
static int serve(const char *folder, const char *stub, int attempt) {
    left = attempt;
    archsplit_graft(folder, stub);
    int is_last = left != NEVER;
    left = NEVER;
    archsplit_graft(folder, stub);
    struct held before = measure();
    archsplit_graft(folder, stub);
    if (is_more(measure(), before) || __lsan_do_recoverable_leak_check() != 0) {
        printf("attempt %d leaves %d blocks\n", attempt, now.blocks - before.blocks);
        fflush(stdout);
        _exit(2);
    }
    return is_last;
}

/* In a child, because a process keeps a core and the records of its libraries. */
static int try_serve(const char *folder, const char *stub, int attempt) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        _exit(serve(folder, stub, attempt));
    }
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) {
        printf("attempt %d ends with %d\n", attempt, status);
        exit(1);
    }
    return WEXITSTATUS(status);
}

static int open_changed(const char *folder, const char *path) {
    archsplit_core *core;
    archsplit_loader *loader;
    void *plugin;
    if (archsplit_core_read(folder, &core) != ARCHSPLIT_OK ||
        archsplit_loader_create(core, &loader) != ARCHSPLIT_OK || truncate(path, 64) != 0) {
        return 1;
    }
    struct held before = measure();
    archsplit_status status = archsplit_loader_open(loader, 0, &plugin);
    printf("%s\n", archsplit_last_error());
    int failed = status != ARCHSPLIT_OPEN_FAILED || is_more(measure(), before);
    archsplit_loader_destroy(loader);
    archsplit_core_free(core);
    return failed;
}

int main(int count, char **arguments) {
    const char *folder = arguments[1];
    int attempt = 0;
    if (count == 3) {
        return open_changed(folder, arguments[2]);
    }
    if (count == 2) {
        /* The driver's library stays open. */
        use(folder);
        while (!try_use(folder, attempt)) {
            attempt++;
        }
    } else if (dlopen(arguments[3], RTLD_NOW) != NULL) {
        while (!try_serve(folder, arguments[2], attempt)) {
            attempt++;
        }
    }
    printf("%d\n", attempt);
    return 0;
}
