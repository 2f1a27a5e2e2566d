/* The index of a device pack: its rows, and the rules for them. */
#ifndef ARCHSPLIT_PACK_INDEX_H
#define ARCHSPLIT_PACK_INDEX_H

#include <stdbool.h>
#include <stddef.h>

#include "../include/archsplit/plugin_loader.h"

/* A pack whose every field was checked; its images are still in the file. */
struct pack {
    archsplit_pack_head head;
    uint8_t *front;       /* descriptor and index; ours */
    const uint8_t *index; /* in it */
    const uint8_t *bytes; /* the whole file in memory, or NULL before its first use */
    uint32_t *rows;       /* this pack's row for each of the core's containers; NULL: the same */
};

const archsplit_pack_library *pack_library(const struct pack *pack, uint32_t number);
const archsplit_pack_container *pack_container(const struct pack *pack, uint32_t number);
const archsplit_pack_image *pack_image(const struct pack *pack, uint32_t number);

/* The pack's row for a container of the core, by its number in the core's table; an empty row where
 * the pack has none. */
const archsplit_pack_container *pack_serving(const struct pack *pack, uint32_t number);

/* True if a library of the pack has this stub. */
bool pack_is_stub(const struct pack *pack, const archsplit_pack_library *library, const char *stub);

/* Rules 14 to 17: check every row of an index whose tables are known to fit. */
archsplit_verdict index_check(const struct pack *pack, bool is_table);

/* True if 16 bytes are what a container of `size` bytes begins with. */
bool pack_is_header(const uint8_t *bytes, uint64_t size);
/* Write the 16 bytes that a container of `size` bytes begins with. */
enum { CONTAINER_HEADER = 16 };
void pack_write_header(uint8_t *place, uint64_t size);

/* Rules 17 and 22: find the rows for the core's containers, and check that the table lists what
 * they list. */
archsplit_verdict pack_match(struct pack *pack, const struct pack *table);

#endif
