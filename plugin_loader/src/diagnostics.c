#include "diagnostics.h"

#include <stdio.h>
#include <string.h>

#include "coverage.h"
#include "error.h"
#include "os.h"
#include "selection.h"

void report_problem(const char *package, const char *what) {
    char line[4608];
    if (package != NULL) {
        snprintf(line, sizeof line, "archsplit: %s\nhint: python -m %s.doctor\n", what, package);
    } else {
        snprintf(line, sizeof line, "archsplit: %s\n", what);
    }
    os_write_error(line);
}

/* Say of one GPU how much of the core's device code it misses; false when it misses nothing. */
static bool report_device(const archsplit_loader *loader, const char *package, uint32_t number) {
    const struct device_state *state = selection_now(loader);
    const struct device *device = &state->machine.devices[number];
    archsplit_service service;
    coverage_count(state, device->capability, &service);
    if (service.missing == 0) {
        return false;
    }
    uint32_t all = service.missing + service.native + service.older_minor + service.ptx;
    error_set("%s %s: device %u, %s (capability %u.%u), finds no code in %u of %u containers of "
              "kernels: those kernels can't run on it",
              loader->package, loader->version, number, device->name, device->capability.major,
              device->capability.minor, service.missing, all);
    report_problem(package, error_text());
    return true;
}

static bool is_strict(void) {
    const char *strict = os_environment("ARCHSPLIT_STRICT");
    return strict != NULL && strcmp(strict, "1") == 0;
}

static void end_if_strict(void) {
    if (is_strict()) {
        os_write_error("archsplit: ARCHSPLIT_STRICT=1, so this process ends here\n");
        os_exit();
    }
}

void report_failure(const char *package) {
    report_problem(package, error_text());
    end_if_strict();
}

/* Report plugins that can't be used and visible GPUs that miss device code. A core without any
 * plugin on a machine without a GPU is how people install it for the CPU: nothing is reported. */
void report_state(const archsplit_loader *loader, const char *package) {
    const struct device_state *state = selection_now(loader);
    bool unserved = false;
    for (uint32_t i = 0; i < loader->count; i++) {
        if (state->verdicts[i].verdict > ARCHSPLIT_SHADOWED) {
            error_set("%s %s", loader->candidates[i].path, state_reason(state, i));
            report_problem(package, error_text());
        }
    }
    for (uint32_t i = 0; i < state->machine.device_count; i++) {
        unserved = report_device(loader, package, i) || unserved;
    }
    if (unserved) {
        end_if_strict();
    }
}
