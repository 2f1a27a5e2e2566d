/* The cores whose libraries this process has loaded. */
#ifndef ARCHSPLIT_CORES_H
#define ARCHSPLIT_CORES_H

#include "loader.h"
#include "places.h"

/* A core whose libraries were loaded; it stays, because its packs stay under them. Where packs come
 * later there is a second one of the same folder, for the libraries that are loaded from then on.
 */
struct core {
    struct core *next;
    char *folder;
    struct places places;
    archsplit_loader *loader;
    uint64_t stamp; /* of all that was read for it */
};

/* A core's folder without links, and without the links that its files are, which an environment of
 * links has: so a core has one name, however it was found. NULL sets the error text. Free it. */
char *cores_folder(const char *folder);

/* The core in this folder, made at the first call and after each change; `stub` asks for it. On
 * failure `used` may have a core too, for the name of its package; the caller destroys one that
 * has no loader. */
archsplit_status cores_take(const char *folder, const char *stub, struct core **used);
void cores_destroy(struct core *core);

/* The lock for the list of cores, and for the records of grafts.h. */
void cores_lock(void);
void cores_unlock(void);

#endif
