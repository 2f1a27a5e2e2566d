/* A program that loads split libraries, one after the other or (--race) each in a thread of its
 * own, and prints what each of them has registered. `--graft LOADER FOLDER STUB` before --race is
 * for one more thread, which calls the loader meanwhile, as a stub does. */
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

static void *graft(void *argument) {
    char **arguments = argument;
    void *loader = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
    void *address = loader != NULL ? dlsym(loader, "archsplit_graft") : NULL;
    int (*function)(const char *, const char *);
    memcpy(&function, &address, sizeof address);
    for (int i = 0; address != NULL && i < 5; i++) {
        function(arguments[1], arguments[2]);
    }
    return address;
}

int main(int argc, char **argv) {
    pthread_t grafting;
    int grafts = argc > 4 && strcmp(argv[1], "--graft") == 0;
    if (grafts) {
        pthread_create(&grafting, NULL, graft, argv + 2);
        argv += 4;
        argc -= 4;
    }
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
    if (grafts) {
        pthread_join(grafting, NULL);
    }
    return 0;
}
