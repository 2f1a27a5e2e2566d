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

/* Read a core's table. */
archsplit_status pack_read_table(const char *path, struct pack *table,
                                 struct descriptor *descriptor);

/* Compare the headers and images in an open pack's file with its index and their digests. The file
 * is read: of a mapped one that becomes shorter meanwhile, the process would die. */
archsplit_verdict pack_verify(const struct pack *pack, const struct os_file *file);

#endif
