/* The contract of plugins: what a shared library must carry so that a core's loader opens it.
 *
 * A plugin is an ELF shared object with one note. The loader reads that note from the file and
 * decides; nothing of a plugin is mapped, and no code of it runs, before it was accepted.
 *
 *  1. The note lies in a PT_NOTE segment (section `.note.archsplit`, allocated, aligned to 4). Its
 *     name is "archsplit", its type 1, its descriptor the bytes described here. A file has exactly
 *     one such note; notes of other names and types are skipped.
 *  2. All integers are little-endian. Offsets count from the descriptor's first byte.
 *  3. Sizes come first and fields are only ever appended. `fixed_size` and `target_size` are the
 *     sizes in the writer's version. A reader skips what is longer, and refuses what is shorter.
 *  4. Another `contract_major` is refused. Any `contract_minor` is accepted.
 *  5. `total_size` is the note's descsz, and at most ARCHSPLIT_MAX_DESCRIPTOR. Texts and the target
 *     table lie between `fixed_size` and `total_size`.
 *  6. A text is UTF-8, of 1 to ARCHSPLIT_MAX_TEXT bytes, without control characters (so without
 *     NUL). `package` is the core's normalized project name, `version` the core's version,
 *     character by character.
 *  7. The target table is aligned to 4 and has 1 to ARCHSPLIT_MAX_TARGETS rows. A row whose kind or
 *     suffix the reader doesn't know refuses the plugin: nothing is guessed.
 *  8. `package`, `version`, `build_id` and `interface_hash` must all be the core's own. Nothing,
 *     and no environment variable, relaxes this.
 *  9. Fields called `reserved` are written as 0 and not read.
 * 10. The loader opens plugins with RTLD_NOW | RTLD_LOCAL and never closes them.
 *
 * From here on: device packs, the plugins of a library that was split after it was built.
 *
 * 11. A plugin of shape 2 is a pack and no ELF file: it begins with archsplit_pack_head, whose
 *     magic is ARCHSPLIT_PACK_MAGIC. Its descriptor, which has no note around it, lies right
 *     behind the head, padded with zeros to a multiple of 8; the index lies right behind the
 *     descriptor. Rules 2 to 9 hold for packs too.
 * 12. The index has, back to back, the rows of libraries, containers and images, then texts. A row
 *     is as long as the head says, a multiple of 8; rule 3 holds for rows and the head.
 * 13. `digest` is the SHA-256 of everything from its own end, with the rest of the head, to the
 *     index's end. A reader computes it before it uses the index, and refuses a pack with another
 *     digest.
 * 14. A library's containers follow each other, and so do a container's images; each row begins
 *     where the one before it ended, and the last one ends with its table.
 * 15. A container with an `offset` lies in this file in the form that the driver reads: header,
 *     then images without a gap, aligned to 8. Offset and size 0: the file has no image of it,
 *     and the container has no image rows.
 * 16. An image's `number` is its place in the container that was split; numbers ascend. Images with
 *     the same library, container and number are the same bytes in all packs of a build.
 * 17. The core has a pack of its own, the table: it lists all images and contains none (each offset
 *     is 0). An image of a pack is used only if the table lists it with the same target, size and
 *     digest.
 * 18. `wrapper` is the address of the wrapper that registers the container, `address` the one of
 * the empty container in the library. Both count from the library's load address.
 * 19. `stub` is the file name (and SONAME) of the library's stub. The loaded file that has it as a
 *     DT_NEEDED is the library.
 *
 * 20. Every core has a table, also one whose plugins are libraries: its shape is 1, its targets are
 *     all that the core has plugins for, and it has one library row, whose name is the file name of
 *     each plugin. A core that was built together with all of its plugins has one container there,
 *     with an image for each target: its digest is the SHA-256 of the plugin's file, its size is 0.
 *     A verified plugin (ARCHSPLIT_VERIFY_PLUGINS) is one of these files.
 *
 * Packs belong to cores by content, so a pack may serve several cores:
 *
 * 21. A container's row has a `key`: the SHA-256 of all image rows of the container that was split,
 *     each in 64 bytes, with the fields offset and reserved set to 0. The rows of the table have
 *     the same keys.
 * 22. The pack's container with the same key serves the container of the core. A pack may lack
 *     containers of the core. It may have others, which are not used. One container may serve
 *     several of the core. Rule 17 holds for each. A pack whose containers all differ from
 *     the core's is refused.
 * 23. In packs, `wrapper`, `address` and the texts of libraries have no meaning; the texts are for
 *     reports. Only the table has the places in a library.
 * 24. The build id of a table and of its packs is a SHA-256 over project, version, the options of
 *     the split and the keys of all containers of the release. The interface hash is one over these
 *     keys. So cores with the same containers have the same packs.
 * 25. `driver_version` is the oldest CUDA driver that reads the pack's images as they are: 12040
 *     for CUDA 12.4, which reads zstd frames; 0 for any. With an older driver, a loader gives the
 *     driver plain images that it has unpacked itself, or it refuses the pack.
 * 26. An image whose `encoder` is not 0 is a zstd frame here, and the vendor had it in another
 *     form. `size` and `digest` are the file's, in the pack and in the table. The key of
 *     rule 21 is computed with the vendor's size and digest, and with `encoder` 0. If rows have
 *     ARCHSPLIT_PACK_IMAGE_WITH_FORM bytes, an archsplit_pack_form with the vendor's form follows
 *     each image. A loader needs neither.
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

/* Values of `shape`. */
#define ARCHSPLIT_SHAPE_LIBRARY 1 /* a whole library, host and device code */
#define ARCHSPLIT_SHAPE_DEVICE 2  /* only device code */

/* Values of a target's `kind`. */
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
    uint32_t fixed_size; /* sizeof(archsplit_descriptor) in the writer's version */
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
    uint16_t target_size; /* sizeof(archsplit_target) in the writer's version */
    uint16_t target_count;
    uint32_t reserved;
    uint8_t build_id[32];       /* SHA-256 of all inputs of the build; of packs see rule 24 */
    uint8_t interface_hash[32]; /* SHA-256 of the public header and the exported symbols */
} archsplit_descriptor;

#define ARCHSPLIT_PACK_MAGIC "\211ASPACK\n" /* 8 bytes; no text file begins like that */
#define ARCHSPLIT_PACK_FILE "device.pack"   /* what a pack is called in its plugin's folder */
#define ARCHSPLIT_TABLE_FILE "core.pack"    /* and the core's table, beside its loader */

#define ARCHSPLIT_MAX_INDEX (1u << 28)

/* The first bytes of a pack, as of contract 1.0. */
typedef struct archsplit_pack_head {
    uint8_t magic[8];
    uint32_t head_size; /* sizeof(archsplit_pack_head) for the writer, a multiple of 8 */
    uint32_t descriptor_size;
    uint64_t file_size;
    uint32_t index_size;
    uint32_t library_count;
    uint32_t container_count;
    uint32_t image_count;
    uint16_t library_size; /* sizes of rows in the writer's version */
    uint16_t container_size;
    uint16_t image_size;
    uint16_t reserved;
    uint8_t digest[32];
    uint32_t driver_version; /* rule 25 */
    uint32_t reserved_too[3];
} archsplit_pack_head;

typedef struct archsplit_pack_library {
    uint32_t name_offset; /* from the index's first byte: the library's place in the core's wheel */
    uint32_t name_length;
    uint32_t stub_offset;
    uint32_t stub_length;
    uint32_t first_container;
    uint32_t container_count;
} archsplit_pack_library;

typedef struct archsplit_pack_container {
    uint64_t offset; /* of its header in this file */
    uint64_t size;   /* header and images */
    uint64_t wrapper;
    uint64_t address;
    uint32_t first_image;
    uint32_t image_count;
    uint32_t flags;
    uint32_t reserved;
    uint8_t key[32]; /* rule 21 */
} archsplit_pack_container;

/* `flags` of a container, in the table: a GPU without code in this container misses nothing. The
 * container has no function and no variable, or was linked from containers that are listed too. */
#define ARCHSPLIT_CONTAINER_UNUSED 1u
/* A device link has written this container. */
#define ARCHSPLIT_CONTAINER_LINKED 2u
/* The container is input of that link. A GPU with machine code in each linked container of the
 * library misses nothing without it. */
#define ARCHSPLIT_CONTAINER_INPUT 4u

typedef struct archsplit_pack_image {
    uint32_t number;
    uint32_t encoder; /* rule 26; 0 for the vendor's form */
    archsplit_target target;
    uint64_t offset; /* of its header in this file */
    uint64_t size;   /* header, payload and padding */
    uint8_t digest[32];
} archsplit_pack_image;

/* The vendor's form of an image; compressed_size to flags are as in the entry's header. */
#define ARCHSPLIT_PACK_IMAGE_WITH_FORM 160
typedef struct archsplit_pack_form {
    uint64_t size; /* header, payload and padding */
    uint32_t compressed_size;
    uint32_t reserved; /* for the number of a solid stream */
    uint64_t uncompressed_size;
    uint64_t flags;
    uint8_t digest[32];     /* of header, payload and padding */
    uint8_t raw_digest[32]; /* of the decompressed image */
} archsplit_pack_form;

#endif
