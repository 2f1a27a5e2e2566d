#include "compat.h"

#include <stdio.h>

/* The published capabilities, ascending, with what people call the GPUs. An embedded part's SASS is
 * promised to no other part, and no other part's SASS to it. The source of each line is in
 * splitter/arch/table.py. */
static const struct known known[] = {
    {3, 0, false, "Tesla K10, GeForce GTX 680"},
    {3, 2, true, "Tegra K1"},
    {3, 5, false, "Tesla K20, K40"},
    {3, 7, false, "Tesla K80"},
    {5, 0, false, "Tesla M10, GeForce GTX 750"},
    {5, 2, false, "Tesla M60, GeForce GTX 980"},
    {5, 3, true, "Jetson TX1, Nano"},
    {6, 0, false, "Tesla P100"},
    {6, 1, false, "Tesla P4, P40, GeForce GTX 1080"},
    {6, 2, true, "Jetson TX2"},
    {7, 0, false, "V100"},
    {7, 2, true, "Jetson Xavier"},
    {7, 5, false, "T4, GeForce RTX 2080"},
    {8, 0, false, "A100, A30"},
    {8, 6, false, "A10, A40, GeForce RTX 3090"},
    {8, 7, true, "Jetson Orin"},
    {8, 8, true, ""},
    {8, 9, false, "L4, L40S, GeForce RTX 4090"},
    {9, 0, false, "H100, H200"},
    {10, 0, false, "B200"},
    {10, 1, true, "Thor before CUDA 13"},
    {10, 3, false, "B300"},
    {10, 7, false, "Rubin"},
    {11, 0, true, "Jetson Thor"},
    {12, 0, false, "RTX PRO 6000, GeForce RTX 5090"},
    {12, 1, false, "GB10 (DGX Spark)"},
};

enum { KNOWN_COUNT = sizeof known / sizeof *known };

const struct known *known_row(size_t index) {
    return index < KNOWN_COUNT ? &known[index] : NULL;
}

static bool is_embedded(uint32_t major, uint32_t minor) {
    for (size_t i = 0; i < KNOWN_COUNT; i++) {
        if (known[i].major == major && known[i].minor == minor) {
            return known[i].embedded;
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
    if (index >= KNOWN_COUNT) {
        return NULL;
    }
    *major = known[index].major;
    *minor = known[index].minor;
    return known[index].gpus;
}
