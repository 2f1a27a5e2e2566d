/* The devices of the machine, and the verdicts on a loader's candidates that follow from them. */
#ifndef ARCHSPLIT_DEVICE_STATE_H
#define ARCHSPLIT_DEVICE_STATE_H

#include "device.h"
#include "loader.h"

struct verdict {
    archsplit_verdict verdict;
    char *reason;    /* NULL if the verdict is the one of reading the candidate */
    bool needs_zstd; /* the driver can't read the images of the pack, but libzstd can */
};

/* Unchanged once a loader has it. */
struct device_state {
    const archsplit_loader *loader;
    struct machine machine;
    struct verdict *verdicts; /* one for each candidate */
};

/* A state with no device, and the verdicts of reading; NULL without memory. */
struct device_state *state_create(const archsplit_loader *loader);
void state_destroy(struct device_state *state);

/* Judge the candidates by the driver and by each other, when the driver is known. */
archsplit_status state_judge(struct device_state *state);

/* True if a candidate may be used; and why not, or "". */
bool state_accepts(const struct device_state *state, uint32_t candidate);
const char *state_reason(const struct device_state *state, uint32_t candidate);

/* True if the driver at hand can load the code of one target of a candidate. */
bool state_can_load(const struct device_state *state, const struct candidate *candidate,
                    const archsplit_target *target);

/* The best accepted candidate for a capability, and the target; false when there is none. */
bool state_choose(const struct device_state *state, struct capability capability,
                  archsplit_choice *choice);

/* The device with CUDA's number `index`. */
archsplit_status state_find_device(const struct device_state *state, uint32_t index,
                                   const struct device **device);

#endif
