#include "diagnostics.h"

#include <stdio.h>
#include <string.h>

#include "error.h"
#include "coverage.h"

void tell(const struct core *core, const char *what) {
    char line[4608];
    if (core != NULL && core->package != NULL) {
        snprintf(line, sizeof line, "archsplit: %s\nhint: python -m %s.doctor\n", what,
                 core->package);
    } else {
        snprintf(line, sizeof line, "archsplit: %s\n", what);
    }
    os_complain(line);
}

/* Say of one GPU how much of the core's device code it misses; false when it misses nothing. */
static bool tell_device(const struct core *core, uint32_t number) {
    const struct survey *survey = survey_now(core->loader);
    const struct device *device = &survey->machine.devices[number];
    archsplit_service service;
    service_count(survey, device->capability, &service);
    if (service.missing == 0) {
        return false;
    }
    uint32_t all = service.missing + service.native + service.older_minor + service.ptx;
    detail_set("%s %s: device %u, %s (capability %u.%u), finds no code in %u of %u containers of "
               "kernels: those kernels can't run on it",
               core->loader->package, core->loader->version, number, device->name,
               device->capability.major, device->capability.minor, service.missing, all);
    tell(core, detail_text());
    return true;
}

/* A core without any plugin is how people without a GPU install it: that is worth no words. */
void tell_state(const struct core *core) {
    const archsplit_loader *loader = core->loader;
    const struct survey *survey = survey_now(loader);
    const char *strict = os_environment("ARCHSPLIT_STRICT");
    bool is_strict = strict != NULL && strcmp(strict, "1") == 0, unserved = false;
    for (uint32_t i = 0; i < loader->count; i++) {
        if (survey->rulings[i].verdict > ARCHSPLIT_SHADOWED) {
            detail_set("%s %s", loader->candidates[i].path, survey_reason(survey, i));
            tell(core, detail_text());
        }
    }
    for (uint32_t i = 0; (is_strict || loader->count > 0) && i < survey->machine.device_count;
         i++) {
        unserved = tell_device(core, i) || unserved;
    }
    if (is_strict && unserved) {
        os_complain("archsplit: ARCHSPLIT_STRICT=1, so this process ends here\n");
        os_end();
    }
}
