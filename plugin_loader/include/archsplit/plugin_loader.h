/* The interface by which a core, or any C or C++ program, opens the plugin that serves a GPU.
 *
 *     archsplit_core *core;
 *     archsplit_loader *loader;
 *     void *plugin, *sort;
 *     if (archsplit_core_read("site-packages/vecsort/_archsplit", &core) != ARCHSPLIT_OK ||
 *         archsplit_loader_create(core, &loader) != ARCHSPLIT_OK ||
 *         archsplit_loader_open(loader, 0, &plugin) != ARCHSPLIT_OK ||
 *         archsplit_plugin_symbol(plugin, "vecsort_sort", &sort) != ARCHSPLIT_OK)
 *         fprintf(stderr, "%s\n", archsplit_last_error());
 *
 * A loader is a snapshot: archsplit_loader_create reads every candidate's descriptor and detects
 * the devices; afterwards nothing in it changes, so any number of threads may use it. No lock is
 * held and CUDA is never initialized, so a process may fork before and after. All texts belong to
 * the loader and are UTF-8 as far as file names are.
 *
 * NVML takes longer than all other work, so it is not called if the files of the kernel driver are
 * enough to choose a plugin. Then the first call that reports on devices calls it:
 * archsplit_loader_summary, _device, _note and _service, and archsplit_process_service.
 *
 * Structs have their size first, set by the caller to sizeof. Fields are only ever appended: a
 * newer library reads and writes no more than the caller's struct has. archsplit_target, which lies
 * in arrays, has no size and never grows.
 */
#ifndef ARCHSPLIT_PLUGIN_LOADER_H
#define ARCHSPLIT_PLUGIN_LOADER_H

#include <stdint.h>

#include "plugin.h"

/* The version of this interface. Functions and fields newer than 1.0 are marked "since". */
#define ARCHSPLIT_LOADER_VERSION_MAJOR 1
#define ARCHSPLIT_LOADER_VERSION_MINOR 1
#define ARCHSPLIT_LOADER_VERSION                                                                   \
    (ARCHSPLIT_LOADER_VERSION_MAJOR * 1000u + ARCHSPLIT_LOADER_VERSION_MINOR)

/* The static library exports nothing: the program or library that it is linked into would export it
 * again. */
#if defined(ARCHSPLIT_LOADER_STATIC)
#define ARCHSPLIT_API
#elif defined(__GNUC__)
#define ARCHSPLIT_API __attribute__((visibility("default")))
#else
#define ARCHSPLIT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct archsplit_loader archsplit_loader;

/* The result of a call. Beside each but ARCHSPLIT_OK, archsplit_last_error has a sentence. */
typedef enum archsplit_status {
    ARCHSPLIT_OK = 0,
    ARCHSPLIT_BAD_ARGUMENT = 1,
    ARCHSPLIT_NO_MEMORY = 2,
    ARCHSPLIT_NO_DEVICE = 3,   /* no driver, no GPU, or no device of that number */
    ARCHSPLIT_NO_PLUGIN = 4,   /* no accepted plugin serves the device */
    ARCHSPLIT_OPEN_FAILED = 5, /* the chosen plugin can't be opened */
    ARCHSPLIT_NO_SYMBOL = 6,
    ARCHSPLIT_BAD_CORE = 7,   /* the core's table is missing or damaged; since 1.1 */
    ARCHSPLIT_BAD_SETTING = 8 /* an environment variable has no valid value; since 1.1 */
} archsplit_status;

/* The verdict on a candidate. All but the first two are refusals. */
typedef enum archsplit_verdict {
    ARCHSPLIT_ACCEPTED = 0,
    ARCHSPLIT_SHADOWED = 1, /* an earlier candidate is the same file or has its targets */
    ARCHSPLIT_UNREADABLE = 2,
    ARCHSPLIT_MISSING = 3, /* the plugin's folder has no library */
    ARCHSPLIT_NOT_ELF = 4, /* or no 64-bit little-endian shared object */
    ARCHSPLIT_WRONG_MACHINE = 5,
    ARCHSPLIT_TRUNCATED = 6,
    ARCHSPLIT_NO_DESCRIPTOR = 7,
    ARCHSPLIT_MALFORMED = 8,
    ARCHSPLIT_WRONG_CONTRACT = 9,
    ARCHSPLIT_WRONG_SHAPE = 10,
    ARCHSPLIT_WRONG_PACKAGE = 11,
    ARCHSPLIT_WRONG_VERSION = 12,
    ARCHSPLIT_WRONG_BUILD = 13,
    ARCHSPLIT_WRONG_INTERFACE = 14,
    ARCHSPLIT_DRIVER_TOO_OLD = 15, /* for all of its targets */
    ARCHSPLIT_UNSAFE = 16,         /* other users can write it, and this process is privileged */
    ARCHSPLIT_NOT_PACK = 17,
    ARCHSPLIT_DAMAGED = 18,       /* its index, or what was verified, has another digest */
    ARCHSPLIT_UNKNOWN_TARGET = 19 /* it has a target that the core was not built for */
} archsplit_verdict;

/* The result of detection. */
typedef enum archsplit_driver_state {
    ARCHSPLIT_DRIVER_READY = 0,
    ARCHSPLIT_DRIVER_NOT_ASKED = 1,
    ARCHSPLIT_DRIVER_MISSING = 2, /* no NVML library, or the kernel driver isn't loaded */
    ARCHSPLIT_DRIVER_NO_GPU = 3,
    ARCHSPLIT_DRIVER_ALL_HIDDEN = 4, /* by CUDA_VISIBLE_DEVICES */
    ARCHSPLIT_DRIVER_FAILED = 5      /* NVML returned an error */
} archsplit_driver_state;

/* `flags` of a core: don't detect devices. Plugins can then be opened for a capability only. */
#define ARCHSPLIT_SKIP_DEVICES 1u
/* `flags` of a core: compare all bytes of each plugin with the recorded digests, and refuse others
 * as ARCHSPLIT_DAMAGED: each image of a device pack with the core's table, a library with
 * `digests`. It takes about 4 ms a megabyte. A verified file that changes later is not opened.
 * Since 1.1. */
#define ARCHSPLIT_VERIFY_PLUGINS 2u

/* The core, and the places of its plugins. Nothing else is ever searched. Of two plugins for one
 * target the first counts: files in their order, then folders in theirs. */
typedef struct archsplit_core {
    uint32_t size;
    uint32_t flags;
    const char *table;          /* the core's core.pack, which has its name, version and build */
    const char *const *folders; /* NULL, or ended by NULL: each holds cuda/<target>/<library> */
    const char *const *files;   /* NULL, or ended by NULL: plugin files, before all folders */
    const char *const *digests; /* NULL, or ended by NULL: the SHA-256 of plugins' libraries, 64
                                   hexadecimal digits, for ARCHSPLIT_VERIFY_PLUGINS; not used
                                   if the table has them */
} archsplit_core;

typedef struct archsplit_summary {
    uint32_t size;
    uint32_t driver_state;      /* archsplit_driver_state */
    const char *driver_reason;  /* why the state is not READY, else "" */
    const char *driver_version; /* "580.95.05", or "" */
    uint32_t cuda_version;      /* newest that the driver supports: 13000 for 13.0; 0: not known */
    uint32_t device_count;      /* devices that CUDA shows to this process */
    uint32_t candidate_count;
    uint32_t note_count;
} archsplit_summary;

typedef struct archsplit_candidate {
    uint32_t size;
    uint32_t verdict;    /* archsplit_verdict */
    const char *path;    /* of the library, or of the folder that can't be read */
    const char *reason;  /* found against expected and what to do; "" when accepted */
    const char *package; /* from here on: as the descriptor has it; "" and 0 without one */
    const char *version;
    const archsplit_target *targets;
    uint32_t target_count;
    uint32_t cuda_version;
} archsplit_candidate;

typedef struct archsplit_device {
    uint32_t size;
    uint32_t major; /* capability */
    uint32_t minor;
    uint32_t nvml_index; /* of the GPU, or of the GPU that the MIG instance is a part of */
    const char *name;
    const char *uuid;
    const char *pci_bus_id;
} archsplit_device;

typedef struct archsplit_choice {
    uint32_t size;
    uint32_t candidate; /* its number */
    archsplit_target target;
} archsplit_choice;

/* The coverage of one capability by the installed device packs: the numbers of containers, by the
 * best code for such a GPU. Containers that never had code for it are not counted. */
typedef struct archsplit_service {
    uint32_t size;
    uint32_t native;
    uint32_t older_minor;
    uint32_t ptx;
    uint32_t worse;   /* of all of the above: those for which a missing pack has better code */
    uint32_t missing; /* launches of kernels in these fail */
    /* From here on: only of archsplit_process_service. */
    uint32_t late;      /* containers for which the packs have better code after a restart */
    uint32_t unmatched; /* of `missing`: the wrapper is not where the core's table has it,
                           or the library's stub did not find this loader */
} archsplit_service;

/* The result for a container when its library was loaded. */
typedef enum archsplit_graft_state {
    ARCHSPLIT_GRAFT_EMPTY = 0, /* no pack had code for a GPU of this machine */
    ARCHSPLIT_GRAFT_SERVED = 1,
    ARCHSPLIT_GRAFT_UNMATCHED = 2, /* its wrapper was not where the core's table has it */
    ARCHSPLIT_GRAFT_FAILED = 3     /* a pack has code for it, which could not be used */
} archsplit_graft_state;

typedef struct archsplit_grafted {
    uint32_t size;
    uint32_t state;      /* archsplit_graft_state */
    const char *library; /* its place in the core's wheel */
    uint32_t container;  /* its number in the library */
    uint32_t target_count;
    const archsplit_target *targets; /* of its code that the driver can load */
} archsplit_grafted;

/* Called with each decision, in the thread that decides, as one line without an end: several
 * threads may be in it at the same time. It must not call the loader. */
typedef void (*archsplit_trace_callback)(const char *line, void *context);

/* The version of the library that is loaded, as ARCHSPLIT_LOADER_VERSION; since 1.1. */
ARCHSPLIT_API uint32_t archsplit_loader_version(void);

/* Find the table and the plugins of the core in a folder: of an installed core this is
 * <site-packages>/<package>/_archsplit, its table is core.pack in it, and the plugins are in
 * <site-packages>/<package>_plugins. The caller may replace fields of the result, for example
 * `folders`, before it creates a loader. The texts and lists belong to the result; free it with
 * archsplit_core_free, before or after the loader. Since 1.1. */
ARCHSPLIT_API archsplit_status archsplit_core_read(const char *folder, archsplit_core **core);
/* NULL is fine. */
ARCHSPLIT_API void archsplit_core_free(archsplit_core *core);

/* Read the candidates, check them against the core, and detect the devices. Neither a missing
 * candidate nor a missing device is an error here; a malformed ARCHSPLIT_CAPABILITY is. The core's
 * texts are copied. */
ARCHSPLIT_API archsplit_status archsplit_loader_create(const archsplit_core *core,
                                                       archsplit_loader **loader);
/* Free the loader; plugins that it opened stay open. NULL is fine. */
ARCHSPLIT_API void archsplit_loader_destroy(archsplit_loader *loader);

ARCHSPLIT_API archsplit_status archsplit_loader_summary(const archsplit_loader *loader,
                                                        archsplit_summary *summary);
ARCHSPLIT_API archsplit_status archsplit_loader_candidate(const archsplit_loader *loader,
                                                          uint32_t index,
                                                          archsplit_candidate *candidate);
/* `index` counts as CUDA does: device 0 is the first that CUDA shows to this process. A
 * struct that ends before `nvml_index` requests only the capability, which may need no NVML. */
ARCHSPLIT_API archsplit_status archsplit_loader_device(const archsplit_loader *loader,
                                                       uint32_t index, archsplit_device *device);
/* A note for people about the devices, or NULL past the last one. */
ARCHSPLIT_API const char *archsplit_loader_note(const archsplit_loader *loader, uint32_t index);

/* Choose the accepted candidate that serves a capability best with the installed driver (any
 * driver, if unknown). */
ARCHSPLIT_API archsplit_status archsplit_loader_choose(const archsplit_loader *loader,
                                                       uint32_t major, uint32_t minor,
                                                       archsplit_choice *choice);
/* Open the plugin that serves a device best; `plugin` is a handle of dlopen, and must not be
 * closed. A file that changed since it was read is refused. */
ARCHSPLIT_API archsplit_status archsplit_loader_open(archsplit_loader *loader, uint32_t device,
                                                     void **plugin);
ARCHSPLIT_API archsplit_status archsplit_loader_open_for_capability(archsplit_loader *loader,
                                                                    uint32_t major, uint32_t minor,
                                                                    void **plugin);
ARCHSPLIT_API archsplit_status archsplit_plugin_symbol(void *plugin, const char *name,
                                                       void **address);

/* For a loader of device packs, which has no plugins to open. */
ARCHSPLIT_API archsplit_status archsplit_loader_service(const archsplit_loader *loader,
                                                        uint32_t major, uint32_t minor,
                                                        archsplit_service *service);

/* The same for this process: loaded libraries are counted by the code that they got when they were
 * loaded, all others by the installed packs. `folder` is the core's own, as for archsplit_graft.
 */
ARCHSPLIT_API archsplit_status archsplit_process_service(const archsplit_loader *loader,
                                                         const char *folder, uint32_t major,
                                                         uint32_t minor,
                                                         archsplit_service *service);
/* The index-th container of the loaded libraries of the core in `folder`;
 * ARCHSPLIT_BAD_ARGUMENT past the last one. Number 0 finds out which libraries are still loaded,
 * and the next numbers hold to that. The texts and targets stay valid. */
ARCHSPLIT_API archsplit_status archsplit_process_container(const char *folder, uint32_t index,
                                                           archsplit_grafted *grafted);

/* Called by a library's stub before the library registers its device code: point the library's
 * wrappers at the images of the packs. `folder` is the loader's own, `stub` the stub's SONAME. A
 * second call for the same library changes no wrapper, also not those without code. If a GPU has no
 * code, the reason is written to standard error; with ARCHSPLIT_STRICT=1 the process
 * ends then. */
ARCHSPLIT_API archsplit_status archsplit_graft(const char *folder, const char *stub);

/* Call a function with each decision of this loader from now on: the verdict on each candidate, the
 * devices and how they were found, the choice, and the packs mapped for each library. The last
 * function replaces the one before; NULL ends it. `context` must stay valid, because another thread
 * may still be in the function when it is replaced. ARCHSPLIT_TRACE=1 writes the same lines to
 * standard error. Each core has a loader of its own, so the call holds for one core. Since 1.1. */
ARCHSPLIT_API archsplit_status archsplit_trace(archsplit_trace_callback callback, void *context);

/* The reason why the last call in this thread did not return ARCHSPLIT_OK; valid until the thread's
 * next. */
ARCHSPLIT_API const char *archsplit_last_error(void);
/* The number of the best of `targets` for a capability, or -1 if none runs on it. */
ARCHSPLIT_API int32_t archsplit_best_target(uint32_t major, uint32_t minor,
                                            const archsplit_target *targets, uint32_t count);
/* Examples of GPUs with the index-th capability that this library knows, or NULL past the last. */
ARCHSPLIT_API const char *archsplit_known_capability(uint32_t index, uint32_t *major,
                                                     uint32_t *minor);
/* "wrong-version" and the like, for reports that programs read. */
ARCHSPLIT_API const char *archsplit_verdict_name(uint32_t verdict);

#ifdef __cplusplus
}
#endif

#endif
