// Open the plugin for a GPU, and call one of its functions.
//
//     greet FOLDER [CAPABILITY]
//
// FOLDER has the core's table, core.pack. Without a capability ("9.0"), CUDA's device 0 is asked
// for.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

#include <archsplit/plugin_loader.h>

namespace {

// archsplit_last_error() is the text of the last call in this thread: read it at once.
void check(archsplit_status status) {
    if (status != ARCHSPLIT_OK) {
        throw std::runtime_error(archsplit_last_error());
    }
}

struct FreeCore {
    void operator()(archsplit_core *core) const {
        archsplit_core_free(core);
    }
};
struct FreeLoader {
    void operator()(archsplit_loader *loader) const {
        archsplit_loader_destroy(loader);
    }
};
using Core = std::unique_ptr<archsplit_core, FreeCore>;
using Loader = std::unique_ptr<archsplit_loader, FreeLoader>;

Core read_core(const std::string &folder) {
    archsplit_core *core = nullptr;
    check(archsplit_core_read(folder.c_str(), &core));
    return Core(core);
}

Loader create_loader(const archsplit_core &core) {
    archsplit_loader *loader = nullptr;
    check(archsplit_loader_create(&core, &loader));
    return Loader(loader);
}

// The plugin is never closed: CUDA keeps pointers into it until the process ends.
void *open_plugin(archsplit_loader *loader, const char *capability) {
    unsigned major = 0, minor = 0;
    void *plugin = nullptr;
    if (capability == nullptr) {
        check(archsplit_loader_open(loader, 0, &plugin));
    } else if (std::sscanf(capability, "%u.%u", &major, &minor) == 2) {
        check(archsplit_loader_open_for_capability(loader, major, minor, &plugin));
    } else {
        throw std::invalid_argument("a capability is written as in 9.0");
    }
    return plugin;
}

template <class Function> Function *symbol(void *plugin, const char *name) {
    void *address = nullptr;
    check(archsplit_plugin_symbol(plugin, name, &address));
    return reinterpret_cast<Function *>(address);
}

void print_decision(const char *line, void *stream) {
    *static_cast<std::ostream *>(stream) << "decision: " << line << '\n';
}

} // namespace

int main(int argc, char **argv) try {
    if (argc < 2) {
        std::cerr << "usage: greet FOLDER [CAPABILITY]\n";
        return 2;
    }
    check(archsplit_trace(print_decision, &std::cerr));
    const Core core = read_core(argv[1]);
    const char *capability = argc > 2 ? argv[2] : nullptr;
    if (capability != nullptr) {
        core->flags |= ARCHSPLIT_SKIP_DEVICES; // a build machine has no GPU to be found
    }
    const Loader loader = create_loader(*core);
    void *plugin = open_plugin(loader.get(), capability);
    std::cout << symbol<const char *()>(plugin, "tinyvec_name")() << '\n';
    return 0;
} catch (const std::exception &error) {
    std::cerr << "greet: " << error.what() << '\n';
    return 1;
}
