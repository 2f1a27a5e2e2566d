#define _GNU_SOURCE /* secure_getenv, dl_iterate_phdr */

#include "os.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "error.h"

enum { FIRST_PAGE = 4096 };

static int refuse(const struct os_file *file, int error, const char *why) {
    error_set("can't be opened: %s", why);
    if (file->descriptor >= 0) {
        close(file->descriptor);
    }
    return error;
}

/* In glibc 2.17 stat and fstat are in a static part, which is linked into this library and has no
 * marks for CET and BTI: the linker would drop ours. The kernel's struct is the same as glibc's on
 * both machines. */
static bool read_status(int descriptor, struct stat *status) {
    return syscall(SYS_fstat, descriptor, status) == 0;
}

static bool read_path_status(const char *path, struct stat *status) {
    return syscall(SYS_newfstatat, AT_FDCWD, path, status, 0) == 0;
}

static struct os_rights rights_of(const struct stat *status) {
    return (struct os_rights){
        .owner = status->st_uid,
        .group = status->st_gid,
        .by_group = (status->st_mode & S_IWGRP) != 0 && status->st_gid != 0,
        .by_all = (status->st_mode & S_IWOTH) != 0,
    };
}

bool os_read_rights(const char *path, struct os_rights *rights) {
    struct stat status;
    bool found = read_path_status(path, &status);
    if (found) {
        *rights = rights_of(&status);
    }
    return found;
}

bool os_loader_rights(struct os_rights *file, struct os_rights *folder) {
    static const char here = 0;
    Dl_info self;
    char *path = dladdr(&here, &self) != 0 ? realpath(self.dli_fname, NULL) : NULL;
    bool found = path != NULL && os_read_rights(path, file);
    if (found) {
        *strrchr(path, '/') = '\0';
        found = os_read_rights(*path != '\0' ? path : "/", folder);
    }
    free(path);
    return found;
}

int os_open(const char *path, struct os_file *file) {
    /* Without O_NONBLOCK a FIFO in a plugin's place would stop the process. */
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat status;
    if (file->descriptor < 0 || !read_status(file->descriptor, &status)) {
        int error = errno;
        return refuse(file, error, strerror(error));
    }
    if (!S_ISREG(status.st_mode)) {
        return refuse(file, EINVAL, "not a regular file");
    }
    file->size = (uint64_t)status.st_size;
    file->identity[0] = (uint64_t)status.st_dev;
    file->identity[1] = (uint64_t)status.st_ino;
    file->identity[2] = (uint64_t)status.st_size;
    file->identity[3] = (uint64_t)status.st_mtim.tv_sec;
    file->identity[4] = (uint64_t)status.st_mtim.tv_nsec;
    file->rights = rights_of(&status);
    file->identity[5] = (uint64_t)status.st_ctim.tv_sec ^ (uint64_t)status.st_ctim.tv_nsec << 32;
    return 0;
}

void os_close(const struct os_file *file) {
    close(file->descriptor);
}

/* As pread, but neither interrupted nor short before the file's end. */
static ssize_t read_at(const struct os_file *file, uint64_t offset, void *buffer, size_t length) {
    size_t done = 0;
    while (done < length) {
        ssize_t got = pread(file->descriptor, (unsigned char *)buffer + done, length - done,
                            (off_t)(offset + done));
        if (got == 0) {
            break;
        }
        if (got < 0 && errno != EINTR) {
            return -1;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return (ssize_t)done;
}

int os_read(const struct os_file *file, uint64_t offset, void *buffer, size_t length) {
    ssize_t done = read_at(file, offset, buffer, length);
    return done < 0 ? errno : (size_t)done < length ? OS_ENDED : 0;
}

struct os_text os_read_text(const char *path) {
    struct os_text found = {{0}, 0};
    struct os_file file;
    if (os_open(path, &file) == 0) {
        ssize_t size = read_at(&file, 0, found.text, sizeof found.text - 1);
        found.size = size < 0 ? 0 : (size_t)size;
        os_close(&file);
    }
    return found;
}

uint64_t os_stamp(const char *path) {
    struct stat status;
    if (!read_path_status(path, &status)) {
        return 0;
    }
    const uint64_t parts[] = {
        (uint64_t)status.st_dev,          (uint64_t)status.st_ino,
        (uint64_t)status.st_size,         (uint64_t)status.st_mtim.tv_sec,
        (uint64_t)status.st_mtim.tv_nsec, (uint64_t)status.st_ctim.tv_sec,
        (uint64_t)status.st_ctim.tv_nsec,
    };
    uint64_t stamp = 14695981039346656037u; /* FNV-1a, a word at a time */
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        stamp = (stamp ^ parts[i]) * 1099511628211u;
    }
    return stamp;
}

bool os_same_place(const char *one, const char *other) {
    struct stat a, b;
    return read_path_status(one, &a) && read_path_status(other, &b) && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

bool os_exists(const char *path) {
    return access(path, F_OK) == 0;
}

bool os_is_usable(const char *path) {
    return faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) == 0;
}

bool os_same_file(const struct os_file *a, const struct os_file *b) {
    return a->identity[0] == b->identity[0] && a->identity[1] == b->identity[1];
}

bool os_unchanged(const struct os_file *a, const struct os_file *b) {
    return memcmp(a->identity, b->identity, sizeof a->identity) == 0;
}

char *os_join(const char *folder, const char *name) {
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    if (path != NULL) {
        snprintf(path, size, "%s/%s", folder, name);
    }
    return path;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_name(char ***names, size_t *count, const char *name) {
    char **more = realloc(*names, (*count + 1) * sizeof *more);
    if (more == NULL) {
        return ENOMEM;
    }
    *names = more;
    more[*count] = strdup(name);
    return more[*count] == NULL ? ENOMEM : ((*count)++, 0);
}

int os_list(const char *folder, char ***names, size_t *count) {
    *names = NULL;
    *count = 0;
    DIR *stream = opendir(folder);
    if (stream == NULL) {
        return errno;
    }
    int error = 0;
    const struct dirent *entry;
    while (error == 0 && (errno = 0, entry = readdir(stream)) != NULL) {
        if (entry->d_name[0] != '.' && strncmp(entry->d_name, "__", 2) != 0) {
            error = add_name(names, count, entry->d_name);
        }
    }
    error = error != 0 ? error : errno;
    closedir(stream);
    if (error != 0) {
        os_free_names(*names, *count);
    } else if (*count > 0) {
        qsort(*names, *count, sizeof **names, compare_names);
    }
    return error;
}

void os_free_names(char **names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(names[i]);
    }
    free(names);
}

void *os_library_open(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        error_set("%s", dlerror());
    }
    return library;
}

/* ld.so wrote the link map under its own lock, of which the thread sanitizer knows nothing. */
__attribute__((noinline, no_sanitize("thread"))) bool os_library_object(void *library,
                                                                        struct os_object *object) {
    struct link_map *map = NULL;
    Dl_info mapped;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || dladdr(map->l_ld, &mapped) == 0) {
        return false;
    }
    /* The first page has the ELF header; tables further on may lie elsewhere in memory. */
    const ElfW(Ehdr) *header = mapped.dli_fbase;
    uint64_t end = header->e_phoff + (uint64_t)header->e_phnum * sizeof(ElfW(Phdr));
    *object =
        (struct os_object){map->l_name, map->l_addr,
                           (const uint8_t *)mapped.dli_fbase + header->e_phoff, header->e_phnum};
    return memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 && end <= FIRST_PAGE;
}

void *os_library_symbol(void *library, const char *name) {
    void *address = dlsym(library, name);
    if (address == NULL) {
        const char *why = dlerror();
        error_set("%s", why != NULL ? why : "the symbol's address is NULL");
    }
    return address;
}

void *os_process_symbol(const char *name) {
    return dlsym(RTLD_DEFAULT, name);
}

const char *os_environment(const char *name) {
    return secure_getenv(name);
}
