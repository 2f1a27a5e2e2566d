#include "pack.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "sha256.h"
#include "untrusted.h"

_Static_assert(sizeof(archsplit_pack_head) == 96, "the layout of contract 1.0");
_Static_assert(sizeof(archsplit_pack_library) == 24, "the layout of contract 1.0");
_Static_assert(sizeof(archsplit_pack_container) == 80, "the layout of contract 1.0");
_Static_assert(sizeof(archsplit_pack_image) == 64, "the layout of contract 1.0");

/* The digest covers all that follows it. */
enum { HASHED_FROM = offsetof(archsplit_pack_head, digest) + 32 };

/* The descriptor's place in what was read. */
static size_t pack_descriptor_at(const struct pack *pack) {
    return pack->head.head_size - HASHED_FROM;
}

static uint64_t tables_size(const archsplit_pack_head *head) {
    return (uint64_t)head->library_count * head->library_size +
           (uint64_t)head->container_count * head->container_size +
           (uint64_t)head->image_count * head->image_size;
}

static bool is_row(uint16_t size, size_t known) {
    return size >= known && size % 8 == 0;
}

static archsplit_verdict check_head(const struct os_file *file, const archsplit_pack_head *head) {
    if (head->file_size != file->size) {
        error_set("is truncated: it has %" PRIu64 " bytes, expected %" PRIu64 REINSTALL, file->size,
                  head->file_size);
        return ARCHSPLIT_TRUNCATED;
    }
    if (head->head_size < sizeof *head || head->head_size % 8 != 0 || head->head_size > 4096) {
        return malformed("the size of the head", head->head_size, "96 to 4096, in eights");
    }
    if (head->descriptor_size > ARCHSPLIT_MAX_DESCRIPTOR) {
        return malformed("the size of the descriptor", head->descriptor_size, "8192 or less");
    }
    if (!is_row(head->library_size, sizeof(archsplit_pack_library)) ||
        !is_row(head->container_size, sizeof(archsplit_pack_container)) ||
        !is_row(head->image_size, sizeof(archsplit_pack_image))) {
        return malformed("the size of a row", head->image_size, "what the contract has or more");
    }
    if (head->index_size > ARCHSPLIT_MAX_INDEX || tables_size(head) > head->index_size) {
        return malformed("the size of the index", head->index_size,
                         "the size of its tables or more");
    }
    return ARCHSPLIT_ACCEPTED;
}

static archsplit_verdict read_head(const struct os_file *file, archsplit_pack_head *head) {
    memset(head, 0, sizeof *head);
    size_t length = file->size < sizeof *head ? (size_t)file->size : sizeof *head;
    int error = os_read(file, 0, head, length);
    if (error != 0) {
        return unread(error, "head");
    }
    size_t magic = length < sizeof head->magic ? length : sizeof head->magic;
    if (memcmp(head->magic, ARCHSPLIT_PACK_MAGIC, magic) != 0) {
        error_set("is not a device pack: it starts with %02x %02x %02x %02x, expected 89 41 53 50",
                  head->magic[0], head->magic[1], head->magic[2], head->magic[3]);
        return ARCHSPLIT_NOT_PACK;
    }
    if (length < sizeof *head) {
        error_set("is truncated: it has %" PRIu64 " bytes, and only its head takes %zu" REINSTALL,
                  file->size, sizeof *head);
        return ARCHSPLIT_TRUNCATED;
    }
    return check_head(file, head);
}

/* Everything from the digest to the images: read at once, and compared with the digest. */
static archsplit_verdict read_front(const struct os_file *file, struct pack *pack) {
    archsplit_pack_head *head = &pack->head;
    size_t rest = sizeof *head - HASHED_FROM, index_at = pack_descriptor_at(pack);
    index_at += ((size_t)head->descriptor_size + 7) / 8 * 8;
    size_t size = index_at + head->index_size;
    uint8_t digest[32];
    if (!fits(HASHED_FROM, size, file->size)) {
        return malformed("the size of the index", head->index_size, "one that fits the file");
    }
    pack->front = malloc(size + 1);
    if (pack->front == NULL) {
        error_set("can't be read: out of memory");
        return ARCHSPLIT_UNREADABLE;
    }
    int error = os_read(file, HASHED_FROM, pack->front, size);
    if (error != 0) {
        return unread(error, "index");
    }
    sha256(pack->front, size, digest);
    if (memcmp(digest, head->digest, sizeof digest) != 0) {
        error_set("is damaged: its index is not what its digest says" REINSTALL);
        return ARCHSPLIT_DAMAGED;
    }
    memcpy((uint8_t *)head + HASHED_FROM, pack->front, rest);
    pack->index = pack->front + index_at;
    return ARCHSPLIT_ACCEPTED;
}

archsplit_verdict pack_read(const struct os_file *file, bool is_table, struct pack *pack,
                            struct descriptor *descriptor) {
    memset(pack, 0, sizeof *pack);
    archsplit_verdict verdict = read_head(file, &pack->head);
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = read_front(file, pack);
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict =
            descriptor_decode(pack->front + pack_descriptor_at(pack), pack->head.descriptor_size,
                              is_table ? ANY_SHAPE : ARCHSPLIT_SHAPE_DEVICE, descriptor);
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = index_check(pack, is_table);
    }
    if (verdict != ARCHSPLIT_ACCEPTED) {
        pack_free(pack);
    }
    return verdict;
}

archsplit_status pack_read_table(const char *path, struct pack *table,
                                 struct descriptor *descriptor) {
    struct os_file file;
    archsplit_verdict verdict = ARCHSPLIT_UNREADABLE;
    if (os_open(path, &file) == 0) {
        verdict = pack_read(&file, true, table, descriptor);
        os_close(&file);
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        return ARCHSPLIT_OK;
    }
    error_append(" (%s); install the core again", path);
    return ARCHSPLIT_BAD_CORE;
}

void pack_free(struct pack *pack) {
    free(pack->front);
    free(pack->rows);
    if (pack->bytes != NULL) {
        os_unmap(pack->bytes, pack->head.file_size);
    }
    memset(pack, 0, sizeof *pack);
}

static archsplit_verdict verify_header(const struct os_file *file,
                                       const archsplit_pack_container *container) {
    uint8_t found[CONTAINER_HEADER];
    int error = os_read(file, container->offset, found, sizeof found);
    if (error != 0) {
        return unread(error, "container");
    }
    if (!pack_is_header(found, container->size)) {
        error_set("is damaged: its container at offset %" PRIu64
                  " has another header than one of %" PRIu64 " bytes" REINSTALL,
                  container->offset, container->size);
        return ARCHSPLIT_DAMAGED;
    }
    return ARCHSPLIT_ACCEPTED;
}

static archsplit_verdict verify_image(const struct os_file *file,
                                      const archsplit_pack_image *image) {
    uint8_t digest[32], *bytes = malloc((size_t)image->size);
    if (bytes == NULL) {
        error_set("can't be read: out of memory");
        return ARCHSPLIT_UNREADABLE;
    }
    int error = os_read(file, image->offset, bytes, (size_t)image->size);
    sha256(bytes, error == 0 ? (size_t)image->size : 0, digest);
    free(bytes);
    if (error != 0) {
        return unread(error, "image");
    }
    if (memcmp(digest, image->digest, sizeof digest) != 0) {
        error_set("is damaged: its image at offset %" PRIu64 " is not what its digest "
                  "says" REINSTALL,
                  image->offset);
        return ARCHSPLIT_DAMAGED;
    }
    return ARCHSPLIT_ACCEPTED;
}

archsplit_verdict pack_verify(const struct pack *pack, const struct os_file *file) {
    archsplit_verdict verdict = ARCHSPLIT_ACCEPTED;
    for (uint32_t i = 0; verdict == ARCHSPLIT_ACCEPTED && i < pack->head.container_count; i++) {
        const archsplit_pack_container *container = pack_container(pack, i);
        if (container->offset != 0) {
            verdict = verify_header(file, container);
        }
    }
    for (uint32_t i = 0; verdict == ARCHSPLIT_ACCEPTED && i < pack->head.image_count; i++) {
        verdict = verify_image(file, pack_image(pack, i));
    }
    return verdict;
}
