#include "verify.h"

#include <stdlib.h>
#include <string.h>

#include "sha256.h"
#include "trace.h"
#include "untrusted.h"

static bool is_on_record(const archsplit_loader *loader, const uint8_t digest[32]) {
    for (uint32_t i = 0; i < loader->digest_count; i++) {
        if (memcmp(loader->digests[i], digest, sizeof loader->digests[i]) == 0) {
            return true;
        }
    }
    return false;
}

static archsplit_verdict verify_library(const archsplit_loader *loader,
                                        const struct os_file *file) {
    uint8_t digest[32], *bytes = malloc((size_t)file->size + 1);
    if (bytes == NULL) {
        error_set("can't be read: out of memory");
        return ARCHSPLIT_UNREADABLE;
    }
    int error = os_read(file, 0, bytes, (size_t)file->size);
    sha256(bytes, error == 0 ? (size_t)file->size : 0, digest);
    free(bytes);
    if (error != 0) {
        return unread(error, "content");
    }
    if (is_on_record(loader, digest)) {
        return ARCHSPLIT_ACCEPTED;
    }
    error_set("is damaged: its SHA-256 is not on record" REINSTALL);
    return ARCHSPLIT_DAMAGED;
}

archsplit_verdict verify_file(const archsplit_loader *loader, const struct candidate *candidate,
                              const struct os_file *file) {
    archsplit_verdict verdict =
        loader->has_table ? pack_verify(&candidate->pack, file) : verify_library(loader, file);
    trace("%s %s", candidate->path,
          verdict == ARCHSPLIT_ACCEPTED ? "is what is on record" : error_text());
    return verdict;
}
