/* The interface to the operating system; os_linux.c and os_memory_linux.c implement it. */
#ifndef ARCHSPLIT_OS_H
#define ARCHSPLIT_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The users who may write a file or folder. */
struct os_rights {
    uint32_t owner;
    uint32_t group;
    bool by_group; /* the group may write it; root's own group never counts */
    bool by_all;
};

/* A file that is open for reading, and which file it was at that moment. */
struct os_file {
    int descriptor;
    uint64_t size;
    uint64_t identity[6]; /* device, inode, size, and the time of the last change */
    struct os_rights rights;
};

/* Open a regular file. On failure the error text says why, and the result is an errno value. */
int os_open(const char *path, struct os_file *file);
void os_close(const struct os_file *file);

/* Read exactly `length` bytes. 0, OS_ENDED when the file is shorter, or an errno value; then the
 * contents of the buffer are undefined. */
enum { OS_ENDED = -1 };
int os_read(const struct os_file *file, uint64_t offset, void *buffer, size_t length);
/* Read a small file of the kernel, which may have no size and may have NULs in it; nothing when it
 * can't be read. */
struct os_text {
    char text[2048]; /* ended by NUL */
    size_t size;
};
struct os_text os_read_text(const char *path);

/* A number that changes when a file or folder does; 0 where there is none. */
uint64_t os_stamp(const char *path);

/* True if there is anything of this name that this process may see. */
bool os_exists(const char *path);
/* True if this process may read and write it. For the file of a device, the check doesn't wake the
 * device. */
bool os_is_usable(const char *path);

/* Map a whole file, to be read and shared by all processes; NULL sets the error text. */
const uint8_t *os_map(const struct os_file *file);
void os_unmap(const uint8_t *bytes, uint64_t size);
/* Get writable memory, and make it read-only (mprotect); NULL sets the error text. */
uint8_t *os_reserve(size_t size);
void os_protect(uint8_t *memory, size_t size);

/* True if this process has more rights than its user, or is root's. */
bool os_privileged(void);
/* True in secure-execution mode (AT_SECURE): a setuid program has more rights than its user. */
bool os_elevated(void);
/* The user with whose rights this process runs. */
uint32_t os_user(void);
/* The rights on a file or folder; false where there is none. */
bool os_read_rights(const char *path, struct os_rights *rights);
/* The file that this code was loaded from, and its folder; false where that can't be had. */
bool os_loader_rights(struct os_rights *file, struct os_rights *folder);
/* True if two paths lead to the same file or folder; false where one of them is missing. */
bool os_same_place(const char *one, const char *other);
/* A folder's path without links, dots and double slashes; NULL sets the error text. Free it. */
char *os_real_path(const char *folder);

/* Visit the loaded objects, one after the other, until `visit` returns true. */
struct os_object {
    const char *name; /* ld.so's copy, see os_object_path */
    uint64_t base;
    const void *headers; /* Elf64_Phdr */
    uint16_t header_count;
};
/* Copy the list of the loaded objects; free it. For a stub's constructor, during which nothing is
 * closed. A child that is forked during os_each_object hangs in its next dlopen and C++ exception,
 * because that lock of ld.so is another thread's, so that nothing may take long there. */
size_t os_objects(struct os_object **objects);
bool os_each_object(bool (*visit)(const struct os_object *object, void *context), void *context);

/* Copy the path by which ld.so found an object, links not followed; false if it is not absolute, or
 * longer than the kernel takes. */
enum { OS_PATH_SIZE = 4096 };
bool os_object_path(const struct os_object *object, char path[OS_PATH_SIZE]);

/* Call a function in each child that this process forks from now on. */
void os_at_fork(void (*child)(void));

/* Write to standard error; end the process at once. */
void os_write_error(const char *text);
_Noreturn void os_exit(void);

bool os_same_file(const struct os_file *a, const struct os_file *b);
bool os_unchanged(const struct os_file *a, const struct os_file *b);

/* Return `folder`/`name`, which the caller frees; NULL without memory. */
char *os_join(const char *folder, const char *name);

/* The names in a folder, sorted by byte, without those that start with "." or "__". An errno value
 * on failure. Free it with os_free_names. */
int os_list(const char *folder, char ***names, size_t *count);
void os_free_names(char **names, size_t count);

/* Open a library with all its symbols bound and not shared; NULL sets the error text. */
void *os_library_open(const char *path);
/* The object of a handle; false if it can't be found. dl_iterate_phdr isn't used: its lock may be
 * held by a thread that a forked child doesn't have. */
bool os_library_object(void *library, struct os_object *object);
/* True if an object was mapped from an open file, as far as the kernel tells. */
bool os_is_mapped_from(const struct os_object *object, const struct os_file *file);
/* NULL sets the error text too. */
void *os_library_symbol(void *library, const char *name);
/* The address of a symbol that the program or one of its libraries exports to all; NULL without. */
void *os_process_symbol(const char *name);

/* An environment variable, or NULL when it is not set or the process has more rights than its
 * user. */
const char *os_environment(const char *name);

#endif
