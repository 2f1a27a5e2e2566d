#include "choose.h"

#include <stdio.h>

static bool is_embedded(uint32_t major, uint32_t minor) {
    const struct known *row;
    for (size_t i = 0; (row = known_row(i)) != NULL; i++) {
        if (row->major == major && row->minor == minor) {
            return row->embedded;
        }
    }
    return false;
}

/* SASS moves up within a major capability, but never to or from an embedded part. */
static bool same_line(const archsplit_target *target, struct capability capability) {
    return target->major == capability.major && target->minor < capability.minor &&
           !is_embedded(target->major, target->minor) &&
           !is_embedded(capability.major, capability.minor);
}

bool target_runs_on(const archsplit_target *target, struct capability capability) {
    if (target->major == capability.major && target->minor == capability.minor) {
        return true;
    }
    if (target->suffix == 'a') {
        return false;
    }
    if (target->kind == ARCHSPLIT_KIND_PTX && target->suffix == 0) {
        return target->major < capability.major ||
               (target->major == capability.major && target->minor < capability.minor);
    }
    return same_line(target, capability);
}

/* Greater is better: SASS before PTX, then the higher capability, then `a`, `f`, none. */
static uint32_t rank(const archsplit_target *target) {
    uint32_t suffix = target->suffix == 'a' ? 2 : target->suffix == 'f' ? 1 : 0;
    uint32_t sass = target->kind == ARCHSPLIT_KIND_SASS ? 1 : 0;
    return sass << 31 | (uint32_t)target->major << 8 | (uint32_t)target->minor << 2 | suffix;
}

bool target_is_better(const archsplit_target *a, const archsplit_target *b) {
    return rank(a) > rank(b);
}

bool target_equals(const archsplit_target *a, const archsplit_target *b) {
    return rank(a) == rank(b);
}

bool target_driver_knows(const archsplit_target *target, uint32_t toolkit, uint32_t driver) {
    if (driver == 0) {
        return true;
    }
    return target->kind == ARCHSPLIT_KIND_PTX ? driver >= toolkit : driver / 1000 >= toolkit / 1000;
}

struct target_name target_name(const archsplit_target *target) {
    struct target_name name;
    const char *kind = target->kind == ARCHSPLIT_KIND_SASS ? "sm" : "compute";
    const char suffix[2] = {(char)target->suffix, '\0'};
    snprintf(name.text, sizeof name.text, "%s_%u%u%s", kind, target->major, target->minor, suffix);
    return name;
}

int32_t archsplit_best_target(uint32_t major, uint32_t minor, const archsplit_target *targets,
                              uint32_t count) {
    int32_t best = -1;
    for (uint32_t i = 0; i < count; i++) {
        if (target_runs_on(&targets[i], (struct capability){major, minor}) &&
            (best < 0 || target_is_better(&targets[i], &targets[best]))) {
            best = (int32_t)i;
        }
    }
    return best;
}

const char *archsplit_known_capability(uint32_t index, uint32_t *major, uint32_t *minor) {
    const struct known *row = known_row(index);
    if (row == NULL) {
        return NULL;
    }
    *major = row->major;
    *minor = row->minor;
    return row->display;
}
