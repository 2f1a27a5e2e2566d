/* The cores whose libraries this process has loaded. */
#ifndef ARCHSPLIT_CORES_H
#define ARCHSPLIT_CORES_H

#include "loader.h"
#include "pack_folders.h"

/* A core whose libraries were loaded; it stays, because its packs stay under them. Where packs come
 * later there is a second one of the same folder, for the libraries that are loaded from then on.
 */
struct core {
    struct core *next;
    char *folder;
    struct pack_folders packs;
    archsplit_loader *loader;
    uint64_t stamp; /* of all that was read for it */
};

/* A core's folder with all links resolved, its files' links too, as in an environment made of
 * links: so a core has one name, however it was found. NULL sets the error text. Free it. */
char *core_real_folder(const char *folder);

/* The core in this folder, made at the first call and after each change; `stub` asks for it. On
 * failure `used` may have a core too, for the name of its package; the caller destroys one that
 * has no loader. */
archsplit_status cores_get(const char *folder, const char *stub, struct core **used);
void cores_destroy(struct core *core);

/* The lock for the list of cores, and for the list of grafted_libraries.h. */
void cores_lock(void);
void cores_unlock(void);

#endif
