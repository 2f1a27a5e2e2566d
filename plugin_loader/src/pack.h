/* Device packs, and the core's table, which is one without images: their rows, and the rules for
 * them. */
#ifndef ARCHSPLIT_PACK_H
#define ARCHSPLIT_PACK_H

#include "descriptor.h"

/* A pack whose every field was checked; its images are still in the file. */
struct pack {
    archsplit_pack_head head;
    uint8_t *metadata;    /* descriptor and index; owned */
    const uint8_t *index; /* in it */
    const uint8_t *bytes; /* the whole file in memory, or NULL before its first use */
    uint32_t *rows;       /* this pack's row for each of the core's containers; NULL: the same */
};

const archsplit_pack_library *pack_library(const struct pack *pack, uint32_t number);
const archsplit_pack_container *pack_container(const struct pack *pack, uint32_t number);
const archsplit_pack_image *pack_image(const struct pack *pack, uint32_t number);

/* The pack's container that matches the core's container of this number in the table; an empty one
 * if the pack has none. */
const archsplit_pack_container *pack_find(const struct pack *pack, uint32_t number);

/* True if a library of the pack has this stub. */
bool pack_is_stub(const struct pack *pack, const archsplit_pack_library *library, const char *stub);

/* True if 16 bytes are what a container of `size` bytes begins with. */
bool pack_is_header(const uint8_t *bytes, uint64_t size);
/* Write the 16 bytes that a container of `size` bytes begins with. */
enum { CONTAINER_HEADER = 16 };
void pack_write_header(uint8_t *place, uint64_t size);

/* Rules 17 and 22: find the rows for the core's containers, and check that the table lists what
 * they list. */
archsplit_verdict pack_match(struct pack *pack, const struct pack *table);

/* Read all of a pack but its images, into memory that pack_free frees. ARCHSPLIT_ACCEPTED, or a
 * refusal whose reason is the error text; there is nothing to free then. `is_table`: the core's
 * own. */
archsplit_verdict pack_read(const struct os_file *file, bool is_table, struct pack *pack,
                            struct descriptor *descriptor);
void pack_free(struct pack *pack);

/* Read a core's table. */
archsplit_status pack_read_table(const char *path, struct pack *table,
                                 struct descriptor *descriptor);

/* Hash a part of a file. */
archsplit_verdict pack_hash(const struct os_file *file, const char *what, uint64_t offset,
                            uint64_t size, uint8_t digest[32]);

/* Compare the headers and images in an open pack's file with its index and their digests. The file
 * is read: of a mapped one that becomes shorter meanwhile, the process would die. */
archsplit_verdict pack_verify(const struct pack *pack, const struct os_file *file);

#endif
