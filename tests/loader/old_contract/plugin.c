/* A plugin as of contract 1.0: its descriptor is written with the old header, and nothing else. */
#include "include/plugin.h"

struct texts {
    char package[7], version[5];
};

__attribute__((section(ARCHSPLIT_NOTE_SECTION), used, aligned(4))) static const struct {
    uint32_t name_size, size, type;
    char name[12];
    archsplit_descriptor fixed;
    archsplit_target targets[2];
    struct texts texts;
} note = {
    sizeof ARCHSPLIT_NOTE_NAME,
    sizeof(archsplit_descriptor) + 2 * sizeof(archsplit_target) + sizeof(struct texts),
    ARCHSPLIT_NOTE_TYPE,
    ARCHSPLIT_NOTE_NAME,
    {
        .fixed_size = sizeof(archsplit_descriptor),
        .total_size =
            sizeof(archsplit_descriptor) + 2 * sizeof(archsplit_target) + sizeof(struct texts),
        .contract_major = ARCHSPLIT_CONTRACT_MAJOR,
        .contract_minor = ARCHSPLIT_CONTRACT_MINOR,
        .shape = ARCHSPLIT_SHAPE_LIBRARY,
        .cuda_version = 13000,
        .package_offset = sizeof(archsplit_descriptor) + 2 * sizeof(archsplit_target),
        .package_length = 7,
        .version_offset = sizeof(archsplit_descriptor) + 2 * sizeof(archsplit_target) + 7,
        .version_length = 5,
        .targets_offset = sizeof(archsplit_descriptor),
        .target_size = sizeof(archsplit_target),
        .target_count = 2,
        .build_id = {[0 ... 31] = 0x11},
        .interface_hash = {[0 ... 31] = 0x22},
    },
    {{ARCHSPLIT_KIND_SASS, 9, 0, 'a'}, {ARCHSPLIT_KIND_PTX, 9, 0, 0}},
    {"vecsort", "1.2.3"},
};

__attribute__((visibility("default"))) int stub_answer(void);

int stub_answer(void) {
    return 42;
}
