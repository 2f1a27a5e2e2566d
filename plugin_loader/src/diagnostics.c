#include "diagnostics.h"

#include <stdio.h>
#include <string.h>

#include "coverage.h"
#include "detection.h"
#include "error.h"
#include "os.h"

void report_problem(const char *package, const char *what, const char *option) {
    char line[4608];
    if (package != NULL) {
        snprintf(line, sizeof line, "archsplit: %s\nhint: python -m %s.doctor%s\n", what, package,
                 option);
    } else {
        snprintf(line, sizeof line, "archsplit: %s\n", what);
    }
    os_write_error(line);
}

/* Count the containers of kernels that one GPU finds, and those that it misses. */
static bool misses_any(const archsplit_loader *loader, uint32_t number,
                       archsplit_service *service) {
    const struct device_state *state = detection_now(loader);
    *service = (archsplit_service){0};
    coverage_count(state, state->machine.devices[number].capability, service);
    return service->missing > 0;
}

/* Report a visible GPU that misses device code, with the command that installs it. */
static void report_device(const archsplit_loader *loader, const char *package, uint32_t number) {
    const struct device *device = &detection_now(loader)->machine.devices[number];
    archsplit_service service;
    if (!misses_any(loader, number, &service)) {
        return;
    }
    uint32_t all = service.missing + service.native + service.older_minor + service.ptx;
    error_set("%s %s: device %u, %s (capability %u.%u), finds no code in %u of %u containers of "
              "kernels: those kernels can't run on it",
              loader->identity.package, loader->identity.version, number, device->name,
              device->capability.major, device->capability.minor, service.missing, all);
    report_problem(package, error_text(), " --install");
}

static void end_if_strict(void) {
    const char *strict = os_environment("ARCHSPLIT_STRICT");
    if (strict != NULL && strcmp(strict, "1") == 0) {
        os_write_error("archsplit: ARCHSPLIT_STRICT=1, so this process ends here\n");
        os_exit();
    }
}

void report_failure(const char *package) {
    report_problem(package, error_text(), "");
    end_if_strict();
}

/* Report plugins that can't be used and visible GPUs that miss device code. A core without any
 * plugin on a machine without a GPU is how people install it for the CPU: nothing is reported. The
 * packs of another environment, which Python has on its path too, may be of another version: they
 * matter where a GPU is not served. */
void report_state(const archsplit_loader *loader, const char *package) {
    const struct device_state *state = detection_now(loader);
    bool unserved = false;
    for (uint32_t i = 0; !unserved && i < state->machine.device_count; i++) {
        archsplit_service service;
        unserved = misses_any(loader, i, &service);
    }
    for (uint32_t i = 0; i < loader->count; i++) {
        const struct candidate *candidate = &loader->candidates[i];
        if (state->verdicts[i].verdict > ARCHSPLIT_SHADOWED &&
            (candidate->folder == 0 || unserved)) {
            error_set("%s %s", candidate->path, state_reason(state, i));
            report_problem(package, error_text(), "");
        }
    }
    for (uint32_t i = 0; i < state->machine.device_count; i++) {
        report_device(loader, package, i);
    }
    if (unserved) {
        end_if_strict();
    }
}
