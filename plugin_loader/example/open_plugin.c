/* A program without Python that opens the plugin for a GPU and calls a function of it.
 *
 *     open_plugin FOLDER FUNCTION [CAPABILITY]
 *
 * FOLDER is the one with core.pack, <site-packages>/<package>/_archsplit, and FUNCTION takes
 * nothing and returns an int. Without a capability ("9.0") device 0 is asked for. */
#include <stdio.h>
#include <string.h>

#include <archsplit/plugin_loader.h>

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, archsplit_last_error());
    return 1;
}

static archsplit_status open_plugin(archsplit_loader *loader, const char *capability,
                                    void **plugin) {
    unsigned major = 0, minor = 0;
    if (capability == NULL || sscanf(capability, "%u.%u", &major, &minor) != 2) {
        return archsplit_loader_open(loader, 0, plugin);
    }
    return archsplit_loader_open_for_capability(loader, major, minor, plugin);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: open_plugin FOLDER FUNCTION [CAPABILITY]\n");
        return 2;
    }
    archsplit_core *core;
    archsplit_loader *loader;
    void *plugin, *address;
    if (archsplit_core_read(argv[1], &core) != ARCHSPLIT_OK) {
        return fail("no core");
    }
    core->flags = argc > 3 ? ARCHSPLIT_SKIP_DEVICES : 0;
    archsplit_status status = archsplit_loader_create(core, &loader);
    archsplit_core_free(core); /* the loader has copied it */
    if (status != ARCHSPLIT_OK) {
        return fail("no loader");
    }
    if (open_plugin(loader, argc > 3 ? argv[3] : NULL, &plugin) != ARCHSPLIT_OK) {
        return fail("no plugin");
    }
    if (archsplit_plugin_symbol(plugin, argv[2], &address) != ARCHSPLIT_OK) {
        return fail("no function");
    }
    int (*function)(void);
    memcpy(&function, &address, sizeof function); /* C has no cast from an object to a function */
    printf("%d\n", function());
    archsplit_loader_destroy(loader); /* the plugin stays open */
    return 0;
}
