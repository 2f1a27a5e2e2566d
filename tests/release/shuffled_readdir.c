/* Preloaded, it gives every folder's entries in another order, as another file system may.
 *
 * All entries of a folder are read at once and put into an order by a random number that is the
 * same in one process: SHUFFLED_READDIR is its seed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct folder {
    DIR *stream;
    struct dirent64 *entries;
    size_t count, next;
    struct folder *others;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct folder *folders;

static uint64_t next_random(void) {
    static uint64_t state;
    if (!state) {
        const char *seed = getenv("SHUFFLED_READDIR");
        state = seed ? strtoull(seed, NULL, 10) * 2 + 1 : 1;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static struct folder *read_all(DIR *stream) {
    struct dirent64 *(*real)(DIR *) = (struct dirent64 * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir64");
    struct folder *folder = calloc(1, sizeof *folder);
    folder->stream = stream;
    for (struct dirent64 *entry; (entry = real(stream));) {
        folder->entries = realloc(folder->entries, (folder->count + 1) * sizeof *folder->entries);
        memcpy(&folder->entries[folder->count++], entry, entry->d_reclen);
    }
    for (size_t left = folder->count; left > 1; left--) {
        size_t other = next_random() % left;
        struct dirent64 kept = folder->entries[left - 1];
        folder->entries[left - 1] = folder->entries[other];
        folder->entries[other] = kept;
    }
    folder->others = folders;
    folders = folder;
    return folder;
}

struct dirent64 *readdir64(DIR *stream) {
    pthread_mutex_lock(&lock);
    struct folder *folder = folders;
    while (folder && folder->stream != stream) {
        folder = folder->others;
    }
    if (!folder) {
        folder = read_all(stream);
    }
    struct dirent64 *entry = NULL;
    if (folder->next < folder->count) {
        entry = &folder->entries[folder->next++];
    }
    pthread_mutex_unlock(&lock);
    return entry;
}

/* On 64-bit Linux both records are the same. */
struct dirent *readdir(DIR *stream) {
    return (struct dirent *)readdir64(stream);
}

static void forget(DIR *stream) {
    pthread_mutex_lock(&lock);
    for (struct folder **at = &folders; *at; at = &(*at)->others) {
        if ((*at)->stream == stream) {
            struct folder *gone = *at;
            *at = gone->others;
            free(gone->entries);
            free(gone);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

int closedir(DIR *stream) {
    int (*real)(DIR *) = (int (*)(DIR *))dlsym(RTLD_NEXT, "closedir");
    forget(stream);
    return real(stream);
}

void rewinddir(DIR *stream) {
    void (*real)(DIR *) = (void (*)(DIR *))dlsym(RTLD_NEXT, "rewinddir");
    forget(stream);
    real(stream);
}
