/* Which code runs on which GPU, and which of several targets is the best; pure. The rules are those
 * of splitter.arch.compat, and a test compares the two over everything that is known. */
#ifndef ARCHSPLIT_CHOOSE_H
#define ARCHSPLIT_CHOOSE_H

#include <stdbool.h>

#include "../include/plugin_loader.h"

struct capability {
    uint32_t major;
    uint32_t minor;
};

bool target_runs_on(const archsplit_target *target, struct capability capability);

/* Whether a GPU on which both run should get `a`. False for equal targets. */
bool target_is_better(const archsplit_target *a, const archsplit_target *b);

bool target_equals(const archsplit_target *a, const archsplit_target *b);

/* Whether a driver can load code that a toolkit made: SASS within the toolkit's major version, PTX
 * only when the driver is not older. `driver` 0 (not known) knows all. Source: CUDA compatibility
 * guide, "Minor Version Compatibility" and its limits. */
bool target_driver_knows(const archsplit_target *target, uint32_t toolkit, uint32_t driver);

/* "sm_120f" */
struct target_name {
    char text[24];
};
struct target_name target_name(const archsplit_target *target);

#endif
