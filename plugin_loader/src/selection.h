/* What is known of the machine, and what follows from that for the candidates of a loader. */
#ifndef ARCHSPLIT_SURVEY_H
#define ARCHSPLIT_SURVEY_H

#include "loader.h"

struct ruling {
    archsplit_verdict verdict;
    char *reason; /* NULL where the verdict is the one that reading the candidate came to */
};

/* Once a loader has it, nobody changes it. */
struct survey {
    const archsplit_loader *loader;
    struct machine machine;
    struct ruling *rulings; /* one for each candidate */
};

/* What a loader has found out so far. A quick look is there when it was enough to load by, and
 * stays; NVML's answer may come later, and counts from then on. */
struct surveys {
    struct survey *quick;
    _Atomic(struct survey *) full;
};

/* Find out what loading needs, asking NVML only where a quick look leaves a doubt. */
archsplit_status surveys_create(archsplit_loader *loader, bool devices);
void surveys_destroy(struct surveys *surveys);

/* What is known now. */
const struct survey *survey_now(const archsplit_loader *loader);

/* What is known when NVML was asked, which is done now if nobody did. No lock is held: of threads
 * that ask at the same moment each may ask NVML, but all are given the same answer. */
archsplit_status survey_full(const archsplit_loader *loader, const struct survey **survey);

/* What is known now if that is enough to choose for a capability, or else NVML's answer. */
archsplit_status survey_to_choose(const archsplit_loader *loader, struct capability capability,
                                  const struct survey **survey);

/* What is known now if that has the device with CUDA's number `index`, or else NVML's answer. */
archsplit_status survey_with_device(const archsplit_loader *loader, uint32_t index,
                                    const struct survey **survey);

/* Whether a candidate may be used; and why not, or "". */
bool survey_accepts(const struct survey *survey, uint32_t candidate);
const char *survey_reason(const struct survey *survey, uint32_t candidate);

/* The driver is known, the rulings are what reading came to: say which of the accepted candidates
 * the driver can use, and which of those an earlier one makes needless. */
archsplit_status survey_settle(struct survey *survey);

/* Whether the driver at hand can load the code of one target of a candidate. */
bool survey_driver_knows(const struct survey *survey, const struct candidate *candidate,
                         const archsplit_target *target);

/* The best accepted candidate for a capability, and the target; false when there is none. */
bool survey_choose(const struct survey *survey, struct capability capability,
                   archsplit_choice *choice);

/* Whether machine code, which no driver has to compile, serves all that a capability needs. */
bool survey_is_native(const struct survey *survey, struct capability capability);

/* The device with CUDA's number `index`. */
archsplit_status survey_find_device(const struct survey *survey, uint32_t index,
                                    const struct device **device);

#endif
