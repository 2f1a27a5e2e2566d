/* A program without Python that opens the plugin for a GPU and calls a function of it.
 *
 *     open_plugin PACKAGE VERSION BUILD_ID INTERFACE_HASH LIBRARY FOLDER FUNCTION [CAPABILITY]
 *
 * The first five are what the core's core.json says, FOLDER is <site-packages>/<package>_plugins,
 * and FUNCTION takes nothing and returns an int. Without a capability ("9.0") device 0 is asked
 * for. */
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
    if (argc < 8) {
        fprintf(stderr, "seven arguments are needed; see the source\n");
        return 2;
    }
    const char *const folders[] = {argv[6], NULL};
    archsplit_core core = {.size = sizeof core, .folders = folders};
    core.package = argv[1];
    core.version = argv[2];
    core.build_id = argv[3];
    core.interface_hash = argv[4];
    core.library = argv[5];
    core.flags = argc > 8 ? ARCHSPLIT_SKIP_DEVICES : 0;
    archsplit_loader *loader;
    void *plugin, *address;
    if (archsplit_loader_create(&core, &loader) != ARCHSPLIT_OK) {
        return fail("no loader");
    }
    if (open_plugin(loader, argc > 8 ? argv[8] : NULL, &plugin) != ARCHSPLIT_OK) {
        return fail("no plugin");
    }
    if (archsplit_plugin_symbol(plugin, argv[7], &address) != ARCHSPLIT_OK) {
        return fail("no function");
    }
    int (*function)(void);
    memcpy(&function, &address, sizeof function);
    printf("%d\n", function());
    archsplit_loader_destroy(loader); /* the plugin stays open */
    return 0;
}
