/* The rules of compatibility between targets, GPUs and drivers; pure. The same rules are in
 * archsplit.arch.compat, and a test compares the two over all published capabilities. */
#ifndef ARCHSPLIT_COMPAT_H
#define ARCHSPLIT_COMPAT_H

#include <stdbool.h>
#include <stddef.h>

#include "../include/archsplit/plugin_loader.h"

struct capability {
    uint32_t major;
    uint32_t minor;
};

bool target_runs_on(const archsplit_target *target, struct capability capability);

/* True if a GPU on which both run should get `a`. False for equal targets. */
bool target_is_better(const archsplit_target *a, const archsplit_target *b);

bool target_equals(const archsplit_target *a, const archsplit_target *b);

/* True if a driver can load code that a toolkit made: SASS within the toolkit's major version, PTX
 * only when the driver is not older. `driver` 0 (not known) knows all. Source: CUDA compatibility
 * guide, "Minor Version Compatibility" and its limits. */
bool target_can_load(const archsplit_target *target, uint32_t toolkit, uint32_t driver);

/* "sm_120f" */
struct target_name {
    char text[24];
};
struct target_name target_name(const archsplit_target *target);

/* The capability of a GPU by its driver's name ("NVIDIA A100-SXM4-40GB"), where one of the product
 * names of the GPU table is a part of that name. */
bool capability_by_name(const char *model, struct capability *capability);

/* The same where every word of the name is understood, so that no GPU of another capability and no
 * virtual GPU ("NVIDIA A10-24Q") has it. */
bool capability_by_exact_name(const char *model, struct capability *capability);

#endif
