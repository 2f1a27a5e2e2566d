/* The one library that a split library needs more than before. ld.so runs this constructor before
 * the library's own ones, which register its device code: so the loader comes just in time.
 *
 * Every split library has a stub of its own, because a library's constructor runs once: a common
 * one would have run for the first of them, and never for the second. All stubs are the same bytes
 * but for the name, which the splitter replaces wherever it stands. */
#define _GNU_SOURCE /* dladdr, secure_getenv */

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char name[] = "libarchsplit_0000000000000000.so";

typedef int (*graft_function)(const char *folder, const char *stub);

static void fail(const char *why) {
    const char *strict = secure_getenv("ARCHSPLIT_STRICT");
    fprintf(stderr, "archsplit: %s; install the core again\n", why);
    if (strict != NULL && strcmp(strict, "1") == 0) {
        _exit(1);
    }
}

static void call(const char *folder, const char *path) {
    void *loader = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *address = loader != NULL ? dlsym(loader, "archsplit_graft") : NULL;
    if (address == NULL) {
        fail(dlerror());
        return;
    }
    graft_function graft;
    memcpy(&graft, &address, sizeof graft);
    graft(folder, name);
}

/* ld.so may have found the stub through a link, in a folder that has no loader. */
__attribute__((constructor)) static void serve(void) {
    Dl_info self;
    char folder[PATH_MAX], path[PATH_MAX + 64];
    if (dladdr((void *)(size_t)name, &self) == 0 || realpath(self.dli_fname, folder) == NULL) {
        fail("the folder of a stub can't be found");
        return;
    }
    *strrchr(folder, '/') = '\0';
    snprintf(path, sizeof path, "%s/libarchsplit_loader.so", folder);
    call(folder, path);
}
