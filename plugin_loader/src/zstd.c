#include "zstd.h"

#include <string.h>

#include "os.h"

#ifndef LIBZSTD
#define LIBZSTD "libzstd.so.1"
#endif

/* Fields of an image's header. Source: measured; see archsplit/formats/fatbin.py. */
enum { HEADER_SIZE_AT = 4, PADDED_SIZE_AT = 8, PACKED_SIZE_AT = 16, FLAGS_AT = 40, SIZE_AT = 56 };
enum { IMAGE_HEADER = 64, ZSTD_FLAG = 0x8000 };

struct header {
    uint32_t header_size;
    uint32_t packed_size;
    uint64_t flags;
    uint64_t size; /* of the unpacked payload */
};

typedef size_t (*decompress_function)(void *to, size_t room, const void *from, size_t size);

static decompress_function find_function(void) {
    void *library = os_elevated() ? NULL : os_library_open(LIBZSTD);
    void *address = library != NULL ? os_library_symbol(library, "ZSTD_decompress") : NULL;
    decompress_function function;
    memcpy(&function, &address, sizeof address);
    return function;
}

bool zstd_is_there(void) {
    return find_function() != NULL;
}

static uint64_t padded(uint64_t size) {
    return (size + 7) / 8 * 8;
}

/* Read a header; false if it is malformed. */
static bool read_header(const uint8_t *image, uint64_t size, struct header *header) {
    memcpy(&header->header_size, image + HEADER_SIZE_AT, sizeof header->header_size);
    memcpy(&header->packed_size, image + PACKED_SIZE_AT, sizeof header->packed_size);
    memcpy(&header->flags, image + FLAGS_AT, sizeof header->flags);
    memcpy(&header->size, image + SIZE_AT, sizeof header->size);
    return header->header_size >= IMAGE_HEADER && header->header_size <= size &&
           header->header_size % 8 == 0 && header->packed_size <= size - header->header_size &&
           header->size < UINT32_MAX;
}

uint64_t zstd_plain_size(const uint8_t *image, uint64_t size) {
    struct header header;
    if (!read_header(image, size, &header)) {
        return 0;
    }
    return header.flags & ZSTD_FLAG ? header.header_size + padded(header.size) : size;
}

bool zstd_unpack(const uint8_t *image, uint64_t size, uint8_t *plain) {
    struct header header;
    if (!read_header(image, size, &header) || (header.flags & ZSTD_FLAG) == 0) {
        memcpy(plain, image, (size_t)size);
        return true;
    }
    decompress_function decompress = find_function();
    uint64_t room = padded(header.size), flags = header.flags & ~(uint64_t)ZSTD_FLAG;
    memcpy(plain, image, header.header_size);
    memcpy(plain + PADDED_SIZE_AT, &room, sizeof room);
    memset(plain + PACKED_SIZE_AT, 0, sizeof header.packed_size);
    memcpy(plain + FLAGS_AT, &flags, sizeof flags);
    memset(plain + SIZE_AT, 0, sizeof header.size);
    /* An error code of libzstd is greater than any size. */
    return decompress != NULL &&
           decompress(plain + header.header_size, (size_t)header.size, image + header.header_size,
                      header.packed_size) == header.size;
}
