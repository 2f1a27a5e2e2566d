/* The one library that a split library needs more than before. ld.so runs this constructor before
 * the library's own ones, which register its device code: so the loader comes just in time.
 *
 * Every split library has a stub of its own, because a library's constructor runs once: a common
 * one would have run for the first of them, and never for the second. All stubs are the same bytes
 * but for the name, which the splitter replaces wherever it stands. */
#define _GNU_SOURCE /* dladdr, dl_iterate_phdr, secure_getenv */

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static const char name[] = "libarchsplit_0000000000000000.so";
static const char loader_name[] = "libarchsplit_loader.so";
static const char origin[] = "$ORIGIN/";

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

static int has_loader(const char *folder) {
    char path[PATH_MAX + sizeof loader_name];
    snprintf(path, sizeof path, "%s/%s", folder, loader_name);
    return access(path, F_OK) == 0;
}

/* Seek the loader along the search path of a library: `folders` are from its dynamic section.
 */
static int search_path(const char *library, const char *folders, char *found) {
    const char *slash = strrchr(library, '/');
    while (slash != NULL && *folders != '\0') {
        size_t length = strcspn(folders, ":"), word = sizeof origin - 1;
        char folder[PATH_MAX];
        if (length > word && memcmp(folders, origin, word) == 0) {
            int size = snprintf(folder, sizeof folder, "%.*s/%.*s", (int)(slash - library), library,
                                (int)(length - word), folders + word);
            if (size > 0 && size < (int)sizeof folder && has_loader(folder) &&
                realpath(folder, found) != NULL) {
                return 1;
            }
        }
        folders += length + (folders[length] == ':' ? 1 : 0);
    }
    return 0;
}

/* Seek the loader for one loaded object, if it needs this stub. */
static int visit(struct dl_phdr_info *info, size_t size, void *found) {
    const char *names = NULL, *folders = NULL;
    const ElfW(Dyn) *dynamic = NULL;
    int needs = 0;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
            dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        }
    }
    for (const ElfW(Dyn) *row = dynamic; row != NULL && row->d_tag != DT_NULL; row++) {
        if (row->d_tag == DT_STRTAB) { /* an address, or (musl, RISC-V) one from the load address */
            ElfW(Addr) at = row->d_un.d_ptr;
            names = (const char *)(at < info->dlpi_addr ? at + info->dlpi_addr : at);
        }
    }
    for (const ElfW(Dyn) *row = dynamic; names != NULL && row->d_tag != DT_NULL; row++) {
        if (row->d_tag == DT_NEEDED) {
            needs = needs || strcmp(names + row->d_un.d_val, name) == 0;
        } else if (row->d_tag == DT_RUNPATH || row->d_tag == DT_RPATH) {
            folders = names + row->d_un.d_val;
        }
    }
    return needs && folders != NULL && search_path(info->dlpi_name, folders, found);
}

/* ld.so may have found the stub through a link, in a folder that has no loader; or found a copy,
 * which a program that packs programs put in front (PyInstaller 5, by LD_LIBRARY_PATH). The library
 * that needs the stub has the core's folder on its search path. A process with more rights than its
 * user takes no other loader than the one beside the stub. */
__attribute__((constructor)) static void serve(void) {
    Dl_info self;
    char folder[PATH_MAX], path[PATH_MAX + 64];
    if (dladdr((void *)(size_t)name, &self) == 0 || realpath(self.dli_fname, folder) == NULL) {
        fail("the folder of a stub can't be found");
        return;
    }
    *strrchr(folder, '/') = '\0';
    if (!has_loader(folder) && getauxval(AT_SECURE) == 0) {
        dl_iterate_phdr(visit, folder);
    }
    snprintf(path, sizeof path, "%s/%s", folder, loader_name);
    call(folder, path);
}
