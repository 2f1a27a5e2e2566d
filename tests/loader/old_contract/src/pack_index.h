/* What a pack's index may say. */
#ifndef ARCHSPLIT_PACK_INDEX_H
#define ARCHSPLIT_PACK_INDEX_H

#include "pack.h"

/* Rules 14 to 17: check every row of an index whose tables are known to fit. */
archsplit_verdict index_check(const struct pack *pack, bool is_table);

#endif
