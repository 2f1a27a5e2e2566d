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

const archsplit_pack_library *pack_library(const struct pack *pack, uint32_t number) {
    return (const void *)(pack->index + (size_t)number * pack->head.library_size);
}

const archsplit_pack_container *pack_container(const struct pack *pack, uint32_t number) {
    const uint8_t *table = (const uint8_t *)pack_library(pack, pack->head.library_count);
    return (const void *)(table + (size_t)number * pack->head.container_size);
}

const archsplit_pack_image *pack_image(const struct pack *pack, uint32_t number) {
    const uint8_t *table = (const uint8_t *)pack_container(pack, pack->head.container_count);
    return (const void *)(table + (size_t)number * pack->head.image_size);
}

#define NO_ROW UINT32_MAX /* an enumerator would be no int */

const archsplit_pack_container *pack_find(const struct pack *pack, uint32_t number) {
    static const archsplit_pack_container nothing = {0};
    uint32_t row = pack->rows != NULL ? pack->rows[number] : number;
    return row != NO_ROW ? pack_container(pack, row) : &nothing;
}

bool pack_is_stub(const struct pack *pack, const archsplit_pack_library *library,
                  const char *stub) {
    return strlen(stub) == library->stub_length &&
           memcmp(pack->index + library->stub_offset, stub, library->stub_length) == 0;
}

enum { IMAGE_HEADER = 64 };

/* The header of every container, but for its size. Source: measured; see
 * archsplit/formats/fatbin.py.
 */
static const uint8_t header[8] = {0x50, 0xed, 0x55, 0xba, 1, 0, CONTAINER_HEADER, 0};

void pack_write_header(uint8_t *place, uint64_t size) {
    uint64_t body = size - CONTAINER_HEADER;
    memcpy(place, header, sizeof header);
    memcpy(place + sizeof header, &body, sizeof body);
}

bool pack_is_header(const uint8_t *bytes, uint64_t size) {
    uint8_t expected[CONTAINER_HEADER];
    pack_write_header(expected, size);
    return memcmp(bytes, expected, sizeof expected) == 0;
}

static archsplit_verdict check_text(const struct pack *pack, uint32_t offset, uint32_t length) {
    return descriptor_check_text(pack->index, "a text", offset, length, 0, pack->head.index_size);
}

/* Rows that follow each other: this one has to begin at `next`, and may not pass the table's end.
 */
static archsplit_verdict check_range(const char *what, uint32_t first, uint32_t count, uint32_t end,
                                     uint32_t *next) {
    if (first != *next || count > end - first) {
        return malformed(what, first, "where the one before it ended, and inside of its table");
    }
    *next = first + count;
    return ARCHSPLIT_ACCEPTED;
}

static archsplit_verdict check_image(const archsplit_pack_image *image, bool is_table,
                                     uint64_t *at) {
    archsplit_verdict verdict = descriptor_check_target(&image->target);
    if (verdict != ARCHSPLIT_ACCEPTED) {
        return verdict;
    }
    bool fits_driver = image->size >= IMAGE_HEADER && image->size % 8 == 0;
    if (!is_table && (!fits_driver || image->size > UINT32_MAX)) {
        return malformed("an image's size", image->size, "a multiple of 8, 64 or more");
    }
    if (image->offset != (is_table ? 0 : *at)) {
        return malformed("an image's offset", image->offset, "where the one before it ended");
    }
    *at += image->size;
    return ARCHSPLIT_ACCEPTED;
}

/* The images of one container, which have to fill it. */
static archsplit_verdict check_images(const struct pack *pack,
                                      const archsplit_pack_container *container, bool is_table) {
    uint64_t at = container->offset + CONTAINER_HEADER;
    for (uint32_t i = 0; i < container->image_count; i++) {
        const archsplit_pack_image *image = pack_image(pack, container->first_image + i);
        archsplit_verdict verdict = check_image(image, is_table, &at);
        if (verdict != ARCHSPLIT_ACCEPTED) {
            return verdict;
        }
        if (i > 0 && image->number <= pack_image(pack, container->first_image + i - 1)->number) {
            return malformed("an image's number", image->number, "more than the one before it");
        }
    }
    if (!is_table && container->offset != 0 && at - container->offset != container->size) {
        return malformed("a container's size", container->size, "the size of its images");
    }
    return ARCHSPLIT_ACCEPTED;
}

static archsplit_verdict check_container(const struct pack *pack,
                                         const archsplit_pack_container *container, bool is_table,
                                         uint32_t *next) {
    archsplit_verdict verdict = check_range("a container's first image", container->first_image,
                                            container->image_count, pack->head.image_count, next);
    if (verdict != ARCHSPLIT_ACCEPTED) {
        return verdict;
    }
    bool empty = container->offset == 0 && container->size == 0;
    if (empty ? !is_table && container->image_count != 0 : is_table) {
        return malformed("a container's offset", container->offset, is_table ? "0" : "more than 0");
    }
    if (!empty && (container->offset % 8 != 0 || container->size < CONTAINER_HEADER ||
                   container->offset < pack->head.head_size ||
                   !fits(container->offset, container->size, pack->head.file_size))) {
        return malformed("a container's offset", container->offset, "a multiple of 8, in the file");
    }
    if (container->wrapper % 8 != 0) {
        return malformed("a wrapper's address", container->wrapper, "a multiple of 8");
    }
    return check_images(pack, container, is_table);
}

static archsplit_verdict check_library(const struct pack *pack,
                                       const archsplit_pack_library *library, uint32_t *next) {
    archsplit_verdict verdict = check_text(pack, library->name_offset, library->name_length);
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = check_text(pack, library->stub_offset, library->stub_length);
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = check_range("a library's first container", library->first_container,
                              library->container_count, pack->head.container_count, next);
    }
    return verdict;
}

static archsplit_verdict index_check(const struct pack *pack, bool is_table) {
    archsplit_verdict verdict = ARCHSPLIT_ACCEPTED;
    uint32_t next = 0;
    for (uint32_t i = 0; verdict == ARCHSPLIT_ACCEPTED && i < pack->head.library_count; i++) {
        verdict = check_library(pack, pack_library(pack, i), &next);
    }
    if (verdict == ARCHSPLIT_ACCEPTED && next != pack->head.container_count) {
        verdict = malformed("the number of containers", pack->head.container_count, "fewer");
    }
    next = 0;
    for (uint32_t i = 0; verdict == ARCHSPLIT_ACCEPTED && i < pack->head.container_count; i++) {
        verdict = check_container(pack, pack_container(pack, i), is_table, &next);
    }
    if (verdict == ARCHSPLIT_ACCEPTED && next != pack->head.image_count) {
        verdict = malformed("the number of images", pack->head.image_count, "fewer");
    }
    return verdict;
}

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
        return malformed("the size of the head", head->head_size, "a multiple of 8, 96 to 4096");
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
        return read_failed(error, "head");
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
static archsplit_verdict read_metadata(const struct os_file *file, struct pack *pack) {
    archsplit_pack_head *head = &pack->head;
    size_t rest = sizeof *head - HASHED_FROM, index_at = pack_descriptor_at(pack);
    index_at += ((size_t)head->descriptor_size + 7) / 8 * 8;
    size_t size = index_at + head->index_size;
    uint8_t digest[32];
    if (!fits(HASHED_FROM, size, file->size)) {
        return malformed("the size of the index", head->index_size, "one that fits the file");
    }
    pack->metadata = malloc(size + 1);
    if (pack->metadata == NULL) {
        error_set("can't be read: out of memory");
        return ARCHSPLIT_UNREADABLE;
    }
    int error = os_read(file, HASHED_FROM, pack->metadata, size);
    if (error != 0) {
        return read_failed(error, "index");
    }
    sha256(pack->metadata, size, digest);
    if (memcmp(digest, head->digest, sizeof digest) != 0) {
        error_set("is damaged: its index does not match its digest" REINSTALL);
        return ARCHSPLIT_DAMAGED;
    }
    memcpy((uint8_t *)head + HASHED_FROM, pack->metadata, rest);
    pack->index = pack->metadata + index_at;
    return ARCHSPLIT_ACCEPTED;
}

archsplit_verdict pack_read(const struct os_file *file, bool is_table, struct pack *pack,
                            struct descriptor *descriptor) {
    memset(pack, 0, sizeof *pack);
    archsplit_verdict verdict = read_head(file, &pack->head);
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict = read_metadata(file, pack);
    }
    if (verdict == ARCHSPLIT_ACCEPTED) {
        verdict =
            descriptor_decode(pack->metadata + pack_descriptor_at(pack), pack->head.descriptor_size,
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
    free(pack->metadata);
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
        return read_failed(error, "container");
    }
    if (!pack_is_header(found, container->size)) {
        error_set("is damaged: its container at offset %" PRIu64
                  " has another header than one of %" PRIu64 " bytes" REINSTALL,
                  container->offset, container->size);
        return ARCHSPLIT_DAMAGED;
    }
    return ARCHSPLIT_ACCEPTED;
}

archsplit_verdict pack_hash(const struct os_file *file, const char *what, uint64_t offset,
                            uint64_t size, uint8_t digest[32]) {
    uint8_t *bytes = malloc((size_t)size + 1);
    if (bytes == NULL) {
        error_set("can't be read: out of memory");
        return ARCHSPLIT_UNREADABLE;
    }
    int error = os_read(file, offset, bytes, (size_t)size);
    sha256(bytes, error == 0 ? (size_t)size : 0, digest);
    free(bytes);
    return error == 0 ? ARCHSPLIT_ACCEPTED : read_failed(error, what);
}

static archsplit_verdict verify_image(const struct os_file *file,
                                      const archsplit_pack_image *image) {
    uint8_t digest[32];
    archsplit_verdict verdict = pack_hash(file, "image", image->offset, image->size, digest);
    if (verdict == ARCHSPLIT_ACCEPTED && memcmp(digest, image->digest, sizeof digest) != 0) {
        error_set("is damaged: its image at offset %" PRIu64 " is not what its digest "
                  "says" REINSTALL,
                  image->offset);
        return ARCHSPLIT_DAMAGED;
    }
    return verdict;
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

/* The table's row for an image, or NULL. */
static const archsplit_pack_image *
find_image(const struct pack *table, const archsplit_pack_container *container, uint32_t number) {
    for (uint32_t i = 0; i < container->image_count; i++) {
        const archsplit_pack_image *image = pack_image(table, container->first_image + i);
        if (image->number == number) {
            return image;
        }
    }
    return NULL;
}

static archsplit_verdict match_images(const struct pack *pack,
                                      const archsplit_pack_container *container,
                                      const struct pack *table,
                                      const archsplit_pack_container *whole) {
    for (uint32_t j = 0; j < container->image_count; j++) {
        const archsplit_pack_image *image = pack_image(pack, container->first_image + j);
        const archsplit_pack_image *listed = find_image(table, whole, image->number);
        if (listed == NULL || listed->size != image->size ||
            memcmp(&listed->target, &image->target, sizeof image->target) != 0 ||
            memcmp(listed->digest, image->digest, sizeof image->digest) != 0) {
            return malformed("an image's number", image->number, "one that the core lists");
        }
    }
    return ARCHSPLIT_ACCEPTED;
}

/* The row with this key, or NO_ROW. Packs have the table's order, so the search goes on where the
 * one before it ended, and mostly ends at once. */
static uint32_t find_row(const struct pack *pack, const uint8_t *key, uint32_t start) {
    for (uint32_t i = 0; i < pack->head.container_count; i++) {
        uint32_t row = (start + i) % pack->head.container_count;
        if (memcmp(pack_container(pack, row)->key, key, sizeof pack_container(pack, row)->key) ==
            0) {
            return row;
        }
    }
    return NO_ROW;
}

static archsplit_verdict find_rows(struct pack *pack, const struct pack *table) {
    uint32_t count = table->head.container_count, next = 0, found = 0;
    pack->rows = malloc(((size_t)count + 1) * sizeof *pack->rows);
    if (pack->rows == NULL) {
        error_set("can't be read: out of memory");
        return ARCHSPLIT_UNREADABLE;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t row = find_row(pack, pack_container(table, i)->key, next);
        pack->rows[i] = row;
        next = row == NO_ROW ? next : row + 1;
        found += row == NO_ROW ? 0 : 1;
    }
    if (found == 0 && pack->head.container_count > 0) {
        error_set("has device code for another Python or platform, and none for this core; install "
                  "the plugin again");
        return ARCHSPLIT_WRONG_BUILD;
    }
    return ARCHSPLIT_ACCEPTED;
}

archsplit_verdict pack_match(struct pack *pack, const struct pack *table) {
    archsplit_verdict verdict = find_rows(pack, table);
    for (uint32_t i = 0; verdict == ARCHSPLIT_ACCEPTED && i < table->head.container_count; i++) {
        verdict = match_images(pack, pack_find(pack, i), table, pack_container(table, i));
    }
    return verdict;
}
