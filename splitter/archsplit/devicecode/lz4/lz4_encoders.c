/*
 * LZ4 encoders that write the same blocks as liblz4 1.9.4 and 1.10.0 at their lowest HC levels.
 *
 * In: the bytes of an image. Out: one LZ4 block. nvcc's writer of fatbins uses three encoders
 * (1.9.4 level 1, 1.10.0 level 1, and level 3 of both), and a split stores such images in another
 * form. To restore a fat library, each block must be made again byte for byte, whichever LZ4 is
 * installed. So what matters here are the choices of an encoder, not its speed:
 *
 *   chain   for each position a chain of earlier positions with the same hash of four bytes. Up to
 *           `attempts` of them are compared, and up to three overlapping matches are weighed.
 *   tables  two tables with the last position of each hash: of seven bytes, then of four.
 *
 * A block is a row of sequences: a token (both lengths, four bits each), more bytes of the first
 * length, literals, the distance in two bytes, more bytes of the second length. The last sequence
 * has literals only. The format asks that the last 5 bytes are literals, and that no match begins
 * in the last 12.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * Encode an image as one block. Returns the block's size; 0 if the block doesn't fit, or if it
 * would differ from `expected`, which is NULL or has `capacity` bytes.
 */
__attribute__((visibility("default"))) size_t archsplit_lz4_encode(uint32_t encoder,
                                                                   const uint8_t *source,
                                                                   size_t size, uint8_t *block,
                                                                   size_t capacity,
                                                                   const uint8_t *expected);

/* The values of `encoder`; `Encoder` in encoders.py has them too. */
enum { HC1_1_9_4 = 1, HC1_1_10 = 2, HC3 = 3 };

enum {
    MIN_MATCH = 4,
    LAST_LITERALS = 5,
    LAST_MATCH = 12, /* no match begins in the last bytes */
    MAX_DISTANCE = 65535,
    WINDOW = 65536,
    FIRST = WINDOW, /* position 0 in the tables, so that their zeros are too far away */
    NIBBLE = 15,
    CHAIN_BITS = 15,
    TABLE_BITS = 14,
    COMPARED = 512,        /* bytes of a block that are compared at once */
    MAX_SIZE = 0x7E000000, /* the format's limit */
};

/* A match that is long enough to be shortened at its start by the one after it. */
#define LONG_MATCH (NIBBLE - 1 + MIN_MATCH)

struct match {
    size_t start, from, length; /* `from` is the position of the earlier bytes */
};

struct writer {
    const uint8_t *source;
    size_t size, anchor; /* literals begin at the anchor */
    uint8_t *block;
    size_t written, compared, capacity;
    const uint8_t *expected; /* NULL: any bytes */
};

static uint32_t read32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t read64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* The number of equal bytes at two positions; the second stays below `end`. */
static size_t count_equal(const uint8_t *source, size_t first, size_t second, size_t end) {
    size_t start = second;
    while (second + 8 <= end) {
        uint64_t difference = read64(source + first) ^ read64(source + second);
        if (difference) {
            return second - start + (size_t)__builtin_ctzll(difference) / 8;
        }
        first += 8;
        second += 8;
    }
    while (second < end && source[first] == source[second]) {
        first++;
        second++;
    }
    return second - start;
}

/* The rest of a length that doesn't fit into its four bits. */
static void write_length(struct writer *to, size_t rest) {
    for (; rest >= 255; rest -= 255) {
        to->block[to->written++] = 255;
    }
    to->block[to->written++] = (uint8_t)rest;
}

/* The number of bytes that `write_length` writes for a length with four bits of its own. */
static size_t more_bytes(size_t length) {
    return length < NIBBLE ? 0 : (length - NIBBLE) / 255 + 1;
}

static bool has_room(const struct writer *to, size_t bytes) {
    return bytes <= to->capacity - to->written;
}

static uint8_t *write_literals(struct writer *to, size_t count) {
    uint8_t *token = to->block + to->written++;
    *token = (uint8_t)((count < NIBBLE ? count : NIBBLE) << 4);
    if (count >= NIBBLE) {
        write_length(to, count - NIBBLE);
    }
    memcpy(to->block + to->written, to->source + to->anchor, count);
    to->written += count;
    return token;
}

/*
 * Most blocks of another encoder differ within a few sequences: the rest needn't be made. Comparing
 * each sequence by itself would take 15 % longer.
 */
static bool is_expected(struct writer *to, size_t least) {
    size_t start = to->compared, count = to->written - start;
    if (to->expected == NULL || count < least) {
        return true;
    }
    to->compared = to->written;
    return memcmp(to->block + start, to->expected + start, count) == 0;
}

static bool write_sequence(struct writer *to, const struct match *match) {
    size_t literals = match->start - to->anchor;
    size_t distance = match->start - match->from, rest = match->length - MIN_MATCH;
    if (!has_room(to, 1 + more_bytes(literals) + literals + 2 + more_bytes(rest))) {
        return false;
    }
    uint8_t *token = write_literals(to, literals);
    to->block[to->written++] = (uint8_t)distance;
    to->block[to->written++] = (uint8_t)(distance >> 8);
    *token |= (uint8_t)(rest < NIBBLE ? rest : NIBBLE);
    if (rest >= NIBBLE) {
        write_length(to, rest - NIBBLE);
    }
    to->anchor = match->start + match->length;
    return is_expected(to, COMPARED);
}

static bool write_end(struct writer *to) {
    size_t literals = to->size - to->anchor;
    if (!has_room(to, 1 + more_bytes(literals) + literals)) {
        return false;
    }
    write_literals(to, literals);
    return is_expected(to, 0);
}

/* --- chain ------------------------------------------------------------------------------------ */

struct chains {
    const uint8_t *source;
    size_t size;
    size_t next; /* the first position that isn't in the chains */
    uint32_t attempts;
    uint32_t last[1 << CHAIN_BITS];
    uint16_t back[WINDOW]; /* the distance to the position before, of the same hash */
};

static uint32_t chain_hash(const uint8_t *at) {
    return read32(at) * 2654435761u >> (32 - CHAIN_BITS);
}

static void add_positions(struct chains *chains, size_t end) {
    for (; chains->next < end; chains->next++) {
        uint32_t index = (uint32_t)chains->next + FIRST;
        uint32_t *last = &chains->last[chain_hash(chains->source + chains->next)];
        uint32_t distance = index - *last;
        chains->back[index % WINDOW] =
            (uint16_t)(distance < MAX_DISTANCE ? distance : MAX_DISTANCE);
        *last = index;
    }
}

/*
 * Replace `best` by a longer match that covers the position `at`. It may begin earlier, but not
 * before `low`. Of equally long ones the nearest wins.
 */
static bool find_longer(struct chains *chains, size_t at, size_t low, struct match *best) {
    const uint8_t *source = chains->source;
    size_t end = chains->size - LAST_LITERALS, before = at - low;
    bool is_found = false;
    add_positions(chains, at);
    uint32_t index = (uint32_t)at + FIRST, found = chains->last[chain_hash(source + at)];
    uint32_t lowest = index > FIRST + MAX_DISTANCE ? index - MAX_DISTANCE : FIRST;
    for (uint32_t left = chains->attempts; left > 0 && found >= lowest; left--) {
        size_t from = found - FIRST;
        /* A longer match has the byte after the best one's end, which costs less to look at. */
        const uint8_t *ours = source + low + best->length - 1;
        const uint8_t *theirs = source + from - before + best->length - 1;
        if (memcmp(ours, theirs, 2) == 0 && read32(source + from) == read32(source + at)) {
            size_t back = 0;
            while (back < before && back < from &&
                   source[at - back - 1] == source[from - back - 1]) {
                back++;
            }
            size_t length = back + MIN_MATCH;
            length += count_equal(source, from + MIN_MATCH, at + MIN_MATCH, end);
            if (length > best->length) {
                *best = (struct match){at - back, from - back, length};
                is_found = true;
            }
        }
        found -= chains->back[found % WINDOW];
    }
    return is_found;
}

static void cut_start(struct match *match, size_t count) {
    match->start += count;
    match->from += count;
    match->length -= count;
}

/* Shorten the second of two overlapping matches, so that the first can be long. */
static void share(const struct match *first, struct match *second) {
    size_t ahead = second->start - first->start;
    if (ahead >= LONG_MATCH) {
        return;
    }
    size_t length = first->length < LONG_MATCH ? first->length : LONG_MATCH;
    if (length > ahead + second->length - MIN_MATCH) {
        length = ahead + second->length - MIN_MATCH;
    }
    if (length > ahead) {
        cut_start(second, length - ahead);
    }
}

/* Look for a match that covers the last bytes of another, and is longer. */
static bool find_overlapping(struct chains *chains, const struct match *match, size_t overlap,
                             struct match *next) {
    size_t end = match->start + match->length;
    *next = (struct match){match->start, match->from, match->length};
    return end + LAST_MATCH <= chains->size &&
           find_longer(chains, end - overlap, match->start, next);
}

/*
 * Write the sequences that begin with a match. A longer match that overlaps it may replace it, and
 * a third one decides how the bytes of both are divided.
 */
static bool write_group(struct chains *chains, struct writer *to, struct match first) {
    struct match before = first, second, third;
    for (;;) {
        if (!find_overlapping(chains, &first, 2, &second)) {
            return write_sequence(to, &first);
        }
        if (before.start < first.start && second.start < first.start + before.length) {
            first = before;
        }
        if (second.start - first.start < 3) {
            first = second;
            continue;
        }
        for (;;) {
            share(&first, &second);
            size_t end = first.start + first.length;
            if (!find_overlapping(chains, &second, 3, &third)) {
                if (second.start < end) {
                    first.length = second.start - first.start;
                }
                return write_sequence(to, &first) && write_sequence(to, &second);
            }
            if (third.start >= end + 3) {
                if (second.start < end) {
                    if (second.start - first.start < LONG_MATCH) {
                        if (first.length > LONG_MATCH) {
                            first.length = LONG_MATCH;
                        }
                        if (first.start + first.length > second.start + second.length - MIN_MATCH) {
                            first.length = second.start - first.start + second.length - MIN_MATCH;
                        }
                        if (first.start + first.length > second.start) {
                            cut_start(&second, first.start + first.length - second.start);
                        }
                    } else {
                        first.length = second.start - first.start;
                    }
                }
                if (!write_sequence(to, &first)) {
                    return false;
                }
                first = second;
                second = third;
                continue;
            }
            if (third.start >= end) {
                /* The third leaves room for the first, so the second is not needed. */
                if (second.start < end) {
                    cut_start(&second, end - second.start);
                    if (second.length < MIN_MATCH) {
                        second = third;
                    }
                }
                if (!write_sequence(to, &first)) {
                    return false;
                }
                first = third;
                before = second;
                break;
            }
            second = third;
        }
    }
}

static bool encode_with_chains(struct writer *to, uint32_t attempts) {
    struct chains *chains = calloc(1, sizeof *chains);
    if (chains == NULL) {
        return false;
    }
    chains->source = to->source;
    chains->size = to->size;
    chains->attempts = attempts;
    memset(chains->back, 0xFF, sizeof chains->back);
    bool is_written = true;
    for (size_t at = 0; is_written && at <= to->size - LAST_MATCH;) {
        struct match match = {at, at, MIN_MATCH - 1};
        if (find_longer(chains, at, at, &match)) {
            is_written = write_group(chains, to, match);
            at = to->anchor;
        } else {
            at++;
        }
    }
    free(chains);
    return is_written;
}

/* --- tables ----------------------------------------------------------------------------------- */

struct tables {
    const uint8_t *source;
    size_t size;
    uint32_t four[1 << TABLE_BITS], seven[1 << TABLE_BITS];
};

static uint32_t hash_four(const uint8_t *at) {
    return read32(at) * 2654435761u >> (32 - TABLE_BITS);
}

static uint32_t hash_seven(const uint8_t *at) {
    return (uint32_t)((read64(at) << 8) * 58295818150454627ull >> (64 - TABLE_BITS));
}

static void add_four(struct tables *tables, size_t at, uint32_t index) {
    tables->four[hash_four(tables->source + at)] = index;
}

static void add_seven(struct tables *tables, size_t at, uint32_t index) {
    tables->seven[hash_seven(tables->source + at)] = index;
}

/* The match of a position with an earlier one of a table; its length is 0 if that is too far. */
static struct match match_at(const struct tables *tables, size_t at, uint32_t index) {
    struct match match = {at, 0, 0};
    if ((uint32_t)at + FIRST - index <= MAX_DISTANCE && index >= FIRST) {
        match.from = index - FIRST;
        match.length = count_equal(tables->source, match.from, at, tables->size - LAST_LITERALS);
    }
    return match;
}

static struct match find_match(struct tables *tables, size_t at) {
    uint32_t index = (uint32_t)at + FIRST;
    uint32_t *seven = &tables->seven[hash_seven(tables->source + at)];
    struct match match = match_at(tables, at, *seven);
    *seven = index;
    if (match.length >= MIN_MATCH) {
        return match;
    }
    uint32_t *four = &tables->four[hash_four(tables->source + at)];
    match = match_at(tables, at, *four);
    *four = index;
    if (match.length >= MIN_MATCH && at + LAST_MATCH < tables->size) {
        seven = &tables->seven[hash_seven(tables->source + at + 1)];
        struct match next = match_at(tables, at + 1, *seven);
        if (next.length > match.length) {
            *seven = index + 1;
            return next;
        }
    }
    return match;
}

/* A match begins earlier if the bytes before it are equal too. */
static void extend_back(struct match *match, const uint8_t *source, size_t anchor) {
    while (match->start > anchor && match->from > 0 &&
           source[match->start - 1] == source[match->from - 1]) {
        match->start--;
        match->from--;
        match->length++;
    }
}

/* Add some positions at the end of a match; those inside of it are left out. */
static void add_end(struct tables *tables, size_t end) {
    uint32_t index = (uint32_t)end + FIRST;
    if (end - 2 >= tables->size - 8) {
        return;
    }
    if (end > 5) {
        add_seven(tables, end - 5, index - 5);
    }
    add_seven(tables, end - 3, index - 3);
    add_seven(tables, end - 2, index - 2);
    add_four(tables, end - 2, index - 2);
    add_four(tables, end - 1, index - 1);
}

static bool encode_with_tables(struct writer *to) {
    struct tables *tables = calloc(1, sizeof *tables);
    if (tables == NULL) {
        return false;
    }
    tables->source = to->source;
    tables->size = to->size;
    bool is_written = true;
    for (size_t at = 0; is_written && at <= to->size - LAST_MATCH;) {
        struct match match = find_match(tables, at);
        if (match.length < MIN_MATCH) {
            /* The longer nothing is found, the more positions are skipped. */
            at += 1 + ((at - to->anchor) >> 9);
            continue;
        }
        /* 1.10.0 adds the match's first bytes under positions counted from where it was searched.
         */
        uint32_t index = (uint32_t)at + FIRST;
        extend_back(&match, to->source, to->anchor);
        add_seven(tables, match.start + 1, index + 1);
        add_seven(tables, match.start + 2, index + 2);
        add_four(tables, match.start + 1, index + 1);
        is_written = write_sequence(to, &match);
        at = to->anchor;
        add_end(tables, at);
    }
    free(tables);
    return is_written;
}

static bool encode(struct writer *to, uint32_t encoder) {
    /* Shorter images have no place for a match. */
    if (to->size <= LAST_MATCH) {
        return true;
    }
    switch (encoder) {
    case HC1_1_9_4:
        return encode_with_chains(to, 2);
    case HC3:
        return encode_with_chains(to, 4);
    case HC1_1_10:
        return encode_with_tables(to);
    default:
        return false;
    }
}

size_t archsplit_lz4_encode(uint32_t encoder, const uint8_t *source, size_t size, uint8_t *block,
                            size_t capacity, const uint8_t *expected) {
    struct writer to = {
        .source = source,
        .size = size,
        .block = block,
        .capacity = capacity,
        .expected = expected,
    };
    return size <= MAX_SIZE && encode(&to, encoder) && write_end(&to) ? to.written : 0;
}
