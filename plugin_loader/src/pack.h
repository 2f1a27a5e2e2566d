/* Read device packs, and the core's table, which is one without images. */
#ifndef ARCHSPLIT_PACK_H
#define ARCHSPLIT_PACK_H

#include "descriptor.h"
#include "pack_index.h"

/* Read all of a pack but its images, into memory that pack_free frees. ARCHSPLIT_ACCEPTED, or a
 * refusal whose reason is the error text; there is nothing to free then. `is_table`: the core's
 * own. */
archsplit_verdict pack_read(const struct os_file *file, bool is_table, struct pack *pack,
                            struct descriptor *descriptor);
void pack_free(struct pack *pack);

/* Whether the images in a pack's bytes are those that its rows have the digests of. */
archsplit_verdict pack_verify(const struct pack *pack, const uint8_t *bytes);

#endif
