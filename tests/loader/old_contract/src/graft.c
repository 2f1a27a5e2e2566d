#include "graft.h"

#include <string.h>

#include "detail.h"

enum { ALIGNMENT = 64, HEADER = 16 };

/* The header of every container, but for its size. Source: measured; see splitter/binfmt/fatbin.py.
 */
static const uint8_t header[8] = {0x50, 0xed, 0x55, 0xba, 1, 0, HEADER, 0};

/* Containers that are put together from several packs, because GPUs differ. */
struct merged {
    uint8_t *memory; /* NULL while it is only measured */
    size_t size;
};

static bool has_wanted(const struct pack *pack, const archsplit_pack_container *container,
                       const archsplit_target *target) {
    for (uint32_t i = 0; i < container->image_count; i++) {
        if (target_equals(&pack_image(pack, container->first_image + i)->target, target)) {
            return true;
        }
    }
    return false;
}

static bool has_all_wanted(const struct candidate *candidate, uint32_t number,
                           const struct wanted *wanted) {
    const archsplit_pack_container *container = pack_container(&candidate->pack, number);
    bool all = container->offset != 0;
    for (uint32_t i = 0; all && i < wanted->count; i++) {
        all = has_wanted(&candidate->pack, container, &wanted->targets[i]);
    }
    return all;
}

/* The one pack that has all that a container needs, or NULL. */
static struct candidate *sole_pack(archsplit_loader *loader, uint32_t number,
                                   const struct wanted *wanted) {
    struct candidate *sole = NULL;
    for (uint32_t i = 0; i < loader->count; i++) {
        struct candidate *candidate = &loader->candidates[i];
        if (candidate->verdict != ARCHSPLIT_ACCEPTED ||
            !has_all_wanted(candidate, number, wanted)) {
            continue;
        }
        if (!wanted->all) {
            return candidate;
        }
        if (sole != NULL) {
            return NULL;
        }
        sole = candidate;
    }
    return sole;
}

/* The next image in the order of the container that was split: the one with the lowest number that
 * is not below `number`, whichever pack has it. */
static const archsplit_pack_image *next_image(const archsplit_loader *loader, uint32_t container,
                                              const struct wanted *wanted, uint32_t number,
                                              struct candidate **holder) {
    const archsplit_pack_image *next = NULL;
    for (uint32_t i = 0; i < loader->count; i++) {
        struct candidate *candidate = &loader->candidates[i];
        if (candidate->verdict != ARCHSPLIT_ACCEPTED) {
            continue;
        }
        const archsplit_pack_container *from = pack_container(&candidate->pack, container);
        for (uint32_t j = 0; j < from->image_count; j++) {
            const archsplit_pack_image *image = pack_image(&candidate->pack, from->first_image + j);
            if (image->number >= number && (next == NULL || image->number < next->number) &&
                service_is_wanted(wanted, &image->target)) {
                next = image;
                *holder = candidate;
            }
        }
    }
    return next;
}

/* Append one container to what is merged; 0 when none of its images is wanted. */
static archsplit_status merge(archsplit_loader *loader, uint32_t container,
                              const struct wanted *wanted, struct merged *merged, uint8_t **place) {
    size_t start = (merged->size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, size = HEADER;
    struct candidate *holder = NULL;
    const archsplit_pack_image *image = next_image(loader, container, wanted, 0, &holder);
    *place = NULL;
    if (image == NULL) {
        return ARCHSPLIT_OK;
    }
    for (; image != NULL;
         image = next_image(loader, container, wanted, image->number + 1, &holder)) {
        archsplit_status status = candidate_map(holder);
        if (status != ARCHSPLIT_OK) {
            return status;
        }
        if (merged->memory != NULL) {
            memcpy(merged->memory + start + size, holder->pack.bytes + image->offset,
                   (size_t)image->size);
        }
        size += (size_t)image->size;
    }
    if (merged->memory != NULL) {
        uint64_t body = size - HEADER;
        *place = merged->memory + start;
        memcpy(*place, header, sizeof header);
        memcpy(*place + sizeof header, &body, sizeof body);
    }
    merged->size = start + size;
    return ARCHSPLIT_OK;
}

/* Serve one container. While `merged` is measured, only those that need no merging are pointed. */
static archsplit_status serve(archsplit_loader *loader, uint32_t number,
                              const struct os_object *object, struct merged *merged) {
    const archsplit_pack_container *row = pack_container(&loader->table, number);
    uint64_t *pointer = object_pointer(object, row->wrapper, row->address);
    struct wanted wanted;
    service_wanted(loader, number, &wanted);
    if (pointer == NULL || (!wanted.all && wanted.count == 0)) {
        return ARCHSPLIT_OK;
    }
    struct candidate *sole = sole_pack(loader, number, &wanted);
    uint8_t *place = NULL;
    archsplit_status status = ARCHSPLIT_OK;
    if (sole == NULL) {
        status = merge(loader, number, &wanted, merged, &place);
    } else {
        status = candidate_map(sole);
        if (status == ARCHSPLIT_OK) {
            place = (uint8_t *)(uintptr_t)sole->pack.bytes +
                    pack_container(&sole->pack, number)->offset;
        }
    }
    if (status == ARCHSPLIT_OK && place != NULL) {
        *pointer = (uint64_t)(uintptr_t)place;
    }
    return status;
}

static archsplit_status serve_all(archsplit_loader *loader, const archsplit_pack_library *library,
                                  const struct os_object *object, struct merged *merged) {
    archsplit_status status = ARCHSPLIT_OK;
    for (uint32_t i = 0; status == ARCHSPLIT_OK && i < library->container_count; i++) {
        status = serve(loader, library->first_container + i, object, merged);
    }
    return status;
}

archsplit_status graft_library(archsplit_loader *loader, const archsplit_pack_library *library,
                               const struct os_object *object) {
    struct merged merged = {NULL, 0};
    archsplit_status status = serve_all(loader, library, object, &merged);
    if (status != ARCHSPLIT_OK || merged.size == 0) {
        return status;
    }
    size_t size = merged.size;
    merged = (struct merged){os_reserve(size), 0};
    if (merged.memory == NULL) {
        return ARCHSPLIT_NO_MEMORY;
    }
    status = serve_all(loader, library, object, &merged);
    os_seal(merged.memory, size);
    return status;
}
