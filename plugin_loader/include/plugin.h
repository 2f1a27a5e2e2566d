/* The contract of plugins: what a shared library must carry so that a core's loader opens it.
 *
 * A plugin is an ELF shared object with one note. The loader reads that note from the file and
 * decides; nothing of a plugin is mapped, and none of its code runs, before it was accepted.
 *
 *  1. The note lies in a PT_NOTE segment (section `.note.archsplit`, allocated, aligned to 4). Its
 *     name is "archsplit", its type 1, its descriptor the bytes described here. A file has exactly
 *     one such note; notes of other names and types are skipped.
 *  2. All integers are little-endian. Offsets count from the descriptor's first byte.
 *  3. Sizes come first and fields are only ever appended. `fixed_size` and `target_size` are what
 *     the writer knew; a reader accepts more than it knows and skips it, and refuses less.
 *  4. Another `contract_major` is refused. Any `contract_minor` is accepted.
 *  5. `total_size` is the note's descsz, and at most ARCHSPLIT_MAX_DESCRIPTOR. Texts and the target
 *     table lie between `fixed_size` and `total_size`.
 *  6. A text is UTF-8, of 1 to ARCHSPLIT_MAX_TEXT bytes, without control characters (so without
 *     NUL). `package` is the core's normalised project name, `version` the core's version,
 *     character by character.
 *  7. The target table is aligned to 4 and has 1 to ARCHSPLIT_MAX_TARGETS rows. A row whose kind or
 *     suffix the reader doesn't know refuses the plugin: what is not known is never guessed.
 *  8. `package`, `version`, `build_id` and `interface_hash` must all be the core's own. Nothing,
 *     and no environment variable, relaxes this.
 *  9. Fields called `reserved` are written as 0 and not read.
 * 10. The loader opens plugins with RTLD_NOW | RTLD_LOCAL and never closes them.
 */
#ifndef ARCHSPLIT_PLUGIN_H
#define ARCHSPLIT_PLUGIN_H

#include <stdint.h>

#define ARCHSPLIT_NOTE_SECTION ".note.archsplit"
#define ARCHSPLIT_NOTE_NAME "archsplit" /* namesz counts the NUL: 10 */
#define ARCHSPLIT_NOTE_TYPE 1

#define ARCHSPLIT_CONTRACT_MAJOR 1
#define ARCHSPLIT_CONTRACT_MINOR 0

#define ARCHSPLIT_MAX_DESCRIPTOR 8192
#define ARCHSPLIT_MAX_TEXT 255
#define ARCHSPLIT_MAX_TARGETS 64

/* What `shape` may be. */
#define ARCHSPLIT_SHAPE_LIBRARY 1 /* a whole library, host and device code */
#define ARCHSPLIT_SHAPE_DEVICE 2  /* device code alone */

/* What a target's `kind` may be. */
#define ARCHSPLIT_KIND_SASS 1 /* sm_90 */
#define ARCHSPLIT_KIND_PTX 2  /* compute_90 */

/* One row of the target table: sm_120f is {ARCHSPLIT_KIND_SASS, 12, 0, 'f'}. */
typedef struct archsplit_target {
    uint16_t kind;
    uint16_t major;
    uint16_t minor;
    uint16_t suffix; /* 0, 'a' or 'f' */
} archsplit_target;

/* The fixed part of a descriptor, as of contract 1.0. */
typedef struct archsplit_descriptor {
    uint32_t fixed_size; /* sizeof(archsplit_descriptor) as the writer knew it */
    uint32_t total_size;
    uint16_t contract_major;
    uint16_t contract_minor;
    uint32_t shape;
    uint32_t cuda_version; /* as CUDART_VERSION: 13000 for CUDA 13.0 */
    uint32_t package_offset;
    uint32_t package_length;
    uint32_t version_offset;
    uint32_t version_length;
    uint32_t targets_offset;
    uint16_t target_size; /* sizeof(archsplit_target) as the writer knew it */
    uint16_t target_count;
    uint32_t reserved;
    uint8_t build_id[32];       /* SHA-256 of all inputs of the build */
    uint8_t interface_hash[32]; /* SHA-256 of the public header and the exported symbols */
} archsplit_descriptor;

#endif
