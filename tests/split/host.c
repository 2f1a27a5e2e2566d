/* A program that loads split libraries, each in a thread of its own, and reads what they register.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void *load(void *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return dlerror();
    }
    const uint8_t *(*container)(int);
    void *address = dlsym(library, "container");
    memcpy(&container, &address, sizeof address);
    for (int i = 0; i < 3; i++) {
        const uint8_t *start = container(i);
        uint64_t size;
        uint32_t sum = 0;
        memcpy(&size, start + 8, sizeof size);
        for (uint64_t at = 0; at < size; at++) {
            sum += start[16 + at];
        }
        printf("%d: %u bytes, sum %u\n", i, (unsigned)size, sum);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[8];
    for (int i = 1; i < argc; i++) {
        pthread_create(&threads[i - 1], NULL, load, argv[i]);
    }
    for (int i = 1; i < argc; i++) {
        void *failure = NULL;
        pthread_join(threads[i - 1], &failure);
        if (failure != NULL) {
            fprintf(stderr, "%s\n", (const char *)failure);
            return 1;
        }
    }
    return 0;
}
