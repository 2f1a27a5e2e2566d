/* Read device packs, and the core's table, which is one without images. */
#ifndef ARCHSPLIT_PACK_H
#define ARCHSPLIT_PACK_H

#include "descriptor.h"

/* A pack whose every field was checked; its images are still in the file. */
struct pack {
    archsplit_pack_head head;
    uint8_t *front;       /* descriptor and index; ours */
    const uint8_t *index; /* in it */
    const uint8_t *bytes; /* the whole file in memory, or NULL as long as nobody needs it */
};

/* Read all of a pack but its images, into memory that pack_free frees. ARCHSPLIT_ACCEPTED, or a
 * refusal whose reason is the detail; there is nothing to free then. `is_table`: the core's own. */
archsplit_verdict pack_read(const struct os_file *file, bool is_table, struct pack *pack,
                            struct descriptor *descriptor);
void pack_free(struct pack *pack);

const archsplit_pack_library *pack_library(const struct pack *pack, uint32_t number);
const archsplit_pack_container *pack_container(const struct pack *pack, uint32_t number);
const archsplit_pack_image *pack_image(const struct pack *pack, uint32_t number);

/* Whether a library of the pack has this stub. */
bool pack_is_stub(const struct pack *pack, const archsplit_pack_library *library, const char *stub);

/* Rule 17: whether all that a pack lists is listed by the core's table too. */
archsplit_verdict pack_match(const struct pack *pack, const struct pack *table);

/* Whether the images in a pack's bytes are those that its rows have the digests of. */
archsplit_verdict pack_verify(const struct pack *pack, const uint8_t *bytes);

#endif
