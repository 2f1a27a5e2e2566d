/* A program that loads split libraries, one after the other or (--race) each in a thread of its
 * own, and prints what each of them has registered. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

enum { MAX_LIBRARIES = 8 };

struct loaded {
    const char *path;
    char letters[2];
    char failure[256];
};

static void *load(void *argument) {
    struct loaded *loaded = argument;
    void *library = dlopen(loaded->path, RTLD_NOW | RTLD_LOCAL);
    void *address = library != NULL ? dlsym(library, "first_letter") : NULL;
    if (address == NULL) {
        snprintf(loaded->failure, sizeof loaded->failure, "%s", dlerror());
        return NULL;
    }
    int (*first_letter)(int);
    memcpy(&first_letter, &address, sizeof address);
    loaded->letters[0] = (char)first_letter(0);
    loaded->letters[1] = (char)first_letter(1);
    return NULL;
}

int main(int argc, char **argv) {
    struct loaded all[MAX_LIBRARIES];
    pthread_t threads[MAX_LIBRARIES];
    int race = argc > 1 && strcmp(argv[1], "--race") == 0, count = argc - 1 - race;
    if (getauxval(AT_SECURE) != 0) {
        printf("secure ");
    }
    for (int i = 0; i < count; i++) {
        all[i] = (struct loaded){.path = argv[1 + race + i]};
        if (race) {
            pthread_create(&threads[i], NULL, load, &all[i]);
        } else {
            load(&all[i]);
        }
    }
    for (int i = 0; i < count; i++) {
        if (race) {
            pthread_join(threads[i], NULL);
        }
        if (*all[i].failure != '\0') {
            printf("%s\n", all[i].failure);
            return 1;
        }
        printf("%c%c\n", all[i].letters[0], all[i].letters[1]);
    }
    return 0;
}
