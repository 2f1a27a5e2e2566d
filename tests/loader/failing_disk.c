/* To be preloaded: makes one call of the C library fail, as a disk or a file server does.
 *
 * FAIL_CALL   open, pread, opendir, readdir or mmap
 * FAIL_ERROR  the errno value; 0 is for an end of file that comes too early, and -1 for a read of
 *             half of the bytes, after which the next one must be for the rest
 * FAIL_PATH   files whose path has this in it (not for readdir, which fails whenever it is called)
 * FAIL_AFTER  how many calls go well before */
#define _GNU_SOURCE /* RTLD_NEXT */

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static void *next(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

static int fails(const char *call, const char *path) {
    static int calls;
    const char *which = getenv("FAIL_CALL"), *where = getenv("FAIL_PATH");
    const char *after = getenv("FAIL_AFTER");
    if (which == NULL || strcmp(which, call) != 0 ||
        (path != NULL && (where == NULL || strstr(path, where) == NULL)) ||
        calls++ < (after != NULL ? atoi(after) : 0)) {
        return 0;
    }
    errno = atoi(getenv("FAIL_ERROR"));
    return 1;
}

static const char *path_of(int descriptor) {
    static _Thread_local char path[4096];
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    return path;
}

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = (flags & O_CREAT) != 0 ? va_arg(more, int) : 0;
    va_end(more);
    int (*real)(const char *, int, ...);
    *(void **)&real = next("open");
    return fails("open", path) ? -1 : real(path, flags, mode);
}

ssize_t pread(int descriptor, void *buffer, size_t size, off_t offset) {
    static off_t end;
    ssize_t (*real)(int, void *, size_t, off_t);
    *(void **)&real = next("pread");
    if (!fails("pread", path_of(descriptor))) {
        return real(descriptor, buffer, size, offset);
    }
    if (errno >= 0) {
        return errno == 0 ? 0 : -1;
    }
    if (end != 0 && offset + (off_t)size != end) {
        abort();
    }
    end = size > 1 ? offset + (off_t)size : 0;
    return real(descriptor, buffer, (size + 1) / 2, offset);
}

DIR *opendir(const char *path) {
    DIR *(*real)(const char *);
    *(void **)&real = next("opendir");
    return fails("opendir", path) ? NULL : real(path);
}

struct dirent *readdir(DIR *stream) {
    struct dirent *(*real)(DIR *);
    *(void **)&real = next("readdir");
    return fails("readdir", NULL) ? NULL : real(stream);
}

void *mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset) {
    void *(*real)(void *, size_t, int, int, int, off_t);
    *(void **)&real = next("mmap");
    if (descriptor >= 0 && fails("mmap", path_of(descriptor))) {
        return MAP_FAILED;
    }
    return real(address, size, protection, flags, descriptor, offset);
}
