/* What an id goes through between its name and its seal, one id after another.
 *
 * What it is: the loops of xxh3_vectors.py, filters/blocked.py, local/overlay.py and runs/run.py, for
 * whom they are the definition: the same answers, bit for bit.
 * What it must not know: files, locks, lanes; Python. Whoever calls holds the memory and its size.
 *
 * Invariants:
 *     Words are little-endian: on another machine none of this is used.
 *     Nothing is read or written beyond what the caller says is there, whatever stands in a filter or
 *     a run: places are computed from the ids and clamped to the counts.
 *     Nothing is kept between calls, so threads may call at once.
 *     Bits of a filter are only ever set, a whole word at a time.
 *
 * How it is fast: memory far away is asked for some ids ahead (`AHEAD`), so that the waiting for one
 * overlaps with that for others; the arithmetic is nothing beside it.
 */

#include <stdint.h>
#include <string.h>

/* Who makes this for another machine than his own asks its compiler. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words are little-endian here"
#endif

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;
typedef unsigned __int128 u128;

/* Ids whose memory is asked for before the first of them is looked at. */
#define AHEAD 64
/* Rows that are looked through one by one; a prefix shared by more is bisected first. */
#define FEW_ROWS 16

/* What this library was made from. */
u64 source_hash(void) { return SOURCE_HASH; }

/* XXH3-128, seed 0, for messages of up to 240 bytes ------------------------------------------- */

static const u32 P32_2 = 0x85EBCA77u;
static const u64 P64_1 = 0x9E3779B185EBCA87u;
static const u64 P64_2 = 0xC2B2AE3D27D4EB4Fu;
static const u64 P64_3 = 0x165667B19E3779F9u;
static const u64 P64_4 = 0x85EBCA77C2B2AE63u;
static const u64 MIX_1 = 0x165667919E3779F9u;
static const u64 MIX_2 = 0x9FB21C651E98DF25u;

typedef struct { u64 high, low; } Hash;

static inline u64 read8(const u8 *at) { u64 word; memcpy(&word, at, 8); return word; }
static inline u32 read4(const u8 *at) { u32 word; memcpy(&word, at, 4); return word; }

static inline Hash multiply(u64 left, u64 right) {
    u128 product = (u128)left * right;
    return (Hash){(u64)(product >> 64), (u64)product};
}

static inline u64 scatter(u64 word, int first, u64 by, int last) {
    word ^= word >> first;
    word *= by;
    return word ^ word >> last;
}

static inline u64 scatter_short(u64 word) {
    word = scatter(word, 33, P64_2, 29) * P64_3;
    return word ^ word >> 32;
}

static inline u64 mix16(const u8 *at, const u8 *secret) {
    Hash product = multiply(read8(at) ^ read8(secret), read8(at + 8) ^ read8(secret + 8));
    return product.high ^ product.low;
}

static inline void mix32(Hash *sum, const u8 *near, const u8 *far, const u8 *secret) {
    sum->low += mix16(near, secret);
    sum->low ^= read8(far) + read8(far + 8);
    sum->high += mix16(far, secret + 16);
    sum->high ^= read8(near) + read8(near + 8);
}

static inline Hash fold(Hash sum, u64 length) {
    Hash hash;
    hash.low = scatter(sum.low + sum.high, 37, MIX_1, 32);
    hash.high = sum.low * P64_1 + sum.high * P64_4 + length * P64_2;
    hash.high = 0 - scatter(hash.high, 37, MIX_1, 32);
    return hash;
}

static inline Hash xxh3_128(const u8 *at, u64 length, const u8 *secret) {
    Hash hash = {0, 0};
    if (length > 128) {
        hash.low = length * P64_1;
        for (u64 from = 0; from < 128; from += 32)
            mix32(&hash, at + from, at + from + 16, secret + from);
        hash.low = scatter(hash.low, 37, MIX_1, 32);
        hash.high = scatter(hash.high, 37, MIX_1, 32);
        for (u64 from = 128; from + 32 <= length; from += 32)
            mix32(&hash, at + from, at + from + 16, secret + from - 125);
        mix32(&hash, at + length - 16, at + length - 32, secret + 103);
        return fold(hash, length);
    }
    if (length > 16) {
        hash.low = length * P64_1;
        /* From the middle outwards. */
        for (i64 from = (i64)((length - 1) / 32 * 16); from >= 0; from -= 16)
            mix32(&hash, at + from, at + length - 16 - from, secret + 2 * from);
        return fold(hash, length);
    }
    if (length > 8) {
        u64 left = read8(at), right = read8(at + length - 8);
        Hash sum = multiply(left ^ right ^ read8(secret + 32) ^ read8(secret + 40), P64_1);
        sum.low += (length - 1) << 54;
        right ^= read8(secret + 48) ^ read8(secret + 56);
        sum.high += right + (u64)(u32)right * (P32_2 - 1);
        sum.low ^= __builtin_bswap64(sum.high);
        hash = multiply(sum.low, P64_2);
        hash.high += sum.high * P64_2;
        hash.low = scatter(hash.low, 37, MIX_1, 32);
        hash.high = scatter(hash.high, 37, MIX_1, 32);
        return hash;
    }
    if (length > 3) {
        u64 both = read4(at) + ((u64)read4(at + length - 4) << 32);
        hash = multiply(both ^ read8(secret + 16) ^ read8(secret + 24), P64_1 + (length << 2));
        hash.high += hash.low << 1;
        hash.low ^= hash.high >> 3;
        hash.low = scatter(hash.low, 35, MIX_2, 28);
        hash.high = scatter(hash.high, 37, MIX_1, 32);
        return hash;
    }
    if (length > 0) {
        u32 low = (u32)at[0] << 16 | (u32)at[length >> 1] << 24 | at[length - 1] | (u32)length << 8;
        u32 high = __builtin_bswap32(low);
        high = high << 13 | high >> 19;
        hash.low = scatter_short(low ^ (u64)(read4(secret) ^ read4(secret + 4)));
        hash.high = scatter_short(high ^ (u64)(read4(secret + 8) ^ read4(secret + 12)));
        return hash;
    }
    hash.low = scatter_short(read8(secret + 64) ^ read8(secret + 72));
    hash.high = scatter_short(read8(secret + 80) ^ read8(secret + 88));
    return hash;
}

/* Hash rows of one length that begin `stride` bytes after each other. */
void hash_rows(const u8 *rows, i64 stride, u64 length, i64 count, const u8 *secret, u64 *ids) {
    for (i64 row = 0; row < count; row++) {
        Hash hash = xxh3_128(rows + row * stride, length, secret);
        ids[2 * row] = hash.high;
        ids[2 * row + 1] = hash.low;
    }
}

/* Hash messages that lie one after another: number `row` from bounds[row] to bounds[row + 1]. Those
 * longer than `length_max` are left alone. */
void hash_spans(const u8 *data, const i64 *bounds, i64 count, u64 length_max, const u8 *secret,
               u64 *ids) {
    for (i64 row = 0; row < count; row++) {
        u64 length = (u64)(bounds[row + 1] - bounds[row]);
        if (length > length_max) continue;
        Hash hash = xxh3_128(data + bounds[row], length, secret);
        ids[2 * row] = hash.high;
        ids[2 * row + 1] = hash.low;
    }
}

/* The blocked filter --------------------------------------------------------------------------- */

typedef struct { u64 first, choice; } Place;

static inline u64 permute(u64 word) {
    word ^= word >> 30;
    word *= 0xBF58476D1CE4E5B9u;
    word ^= word >> 27;
    word *= 0x94D049BB133111EBu;
    return word ^ word >> 31;
}

static inline Place place_of(const u64 *id, u64 words, const u64 *key) {
    u64 line = (u32)id[0], choice = id[1] >> 34;
    if (key) {
        u64 hash = key[4] + (id[0] >> 32) * key[0] + (u64)(u32)id[0] * key[1];
        hash = permute(hash + (id[1] >> 32) * key[2] + (u64)(u32)id[1] * key[3]);
        line = hash >> 32;
        choice = hash & ((1u << 30) - 1);
    }
    return (Place){line * words >> 32, choice};
}

static inline u64 second_of(Place place) { return place.first ^ ((place.choice & 6) | 1); }
static inline u64 one_of(Place place, const u64 *patterns) { return patterns[place.choice >> 18]; }
static inline u64 two_of(Place place, const u64 *patterns) {
    return patterns[place.choice >> 6 & 4095];
}

/* Set the bits of ids. */
void filter_add(u64 *bits, u64 words, const u64 *patterns, const u64 *key, const u64 *ids,
                i64 count) {
    Place places[AHEAD];
    for (i64 from = 0; from < count; from += AHEAD) {
        i64 some = count - from < AHEAD ? count - from : AHEAD;
        for (i64 at = 0; at < some; at++) {
            places[at] = place_of(ids + 2 * (from + at), words, key);
            __builtin_prefetch(bits + places[at].first, 1);
        }
        for (i64 at = 0; at < some; at++) {
            bits[places[at].first] |= one_of(places[at], patterns);
            bits[second_of(places[at])] |= two_of(places[at], patterns);
        }
    }
}

/* Tell of each id whether all its bits are set. */
void filter_maybe(const u64 *bits, u64 words, const u64 *patterns, const u64 *key, const u64 *ids,
                 i64 count, u8 *maybe) {
    Place places[AHEAD];
    for (i64 from = 0; from < count; from += AHEAD) {
        i64 some = count - from < AHEAD ? count - from : AHEAD;
        for (i64 at = 0; at < some; at++) {
            places[at] = place_of(ids + 2 * (from + at), words, key);
            __builtin_prefetch(bits + places[at].first);
        }
        for (i64 at = 0; at < some; at++) {
            u64 one = one_of(places[at], patterns);
            u8 hit = (bits[places[at].first] & one) == one;
            if (hit) {
                u64 two = two_of(places[at], patterns);
                hit = (bits[second_of(places[at])] & two) == two;
            }
            maybe[from + at] = hit;
        }
    }
}

/* Lines of an overlay -------------------------------------------------------------------------- */

/* Let the ids of `held` from row `start` to `end` queue in front of their lines. */
void lines_add(i32 *first, i32 *next, const u64 *held, i32 start, i32 end, int line_bits) {
    int shift = 64 - line_bits;
    for (i32 row = start; row < end; row++) {
        if (row + AHEAD < end) __builtin_prefetch(first + (held[2 * (i64)(row + AHEAD)] >> shift), 1);
        u64 line = held[2 * (i64)row] >> shift;
        next[row] = first[line];
        first[line] = row;
    }
}

/* Tell of each id whether it stands in its line. Write the places of those whose line is too long to
 * tell; return how many they are. */
i64 lines_ask(const i32 *first, const i32 *next, const u64 *held, int line_bits, int line_max,
              const u64 *ids, i64 count, u8 *known, i64 *unsure) {
    i32 rows[AHEAD];
    i64 left = 0;
    int shift = 64 - line_bits;
    for (i64 from = 0; from < count; from += AHEAD) {
        i64 some = count - from < AHEAD ? count - from : AHEAD;
        for (i64 at = 0; at < some; at++)
            __builtin_prefetch(first + (ids[2 * (from + at)] >> shift));
        for (i64 at = 0; at < some; at++) {
            rows[at] = first[ids[2 * (from + at)] >> shift];
            if (rows[at] >= 0) {
                __builtin_prefetch(held + 2 * (i64)rows[at]);
                __builtin_prefetch(next + rows[at]);
            }
        }
        for (i64 at = 0; at < some; at++) {
            const u64 *id = ids + 2 * (from + at);
            i32 row = rows[at];
            u8 hit = 0;
            for (int turn = 0; row >= 0 && turn < line_max && !hit; turn++) {
                const u64 *one = held + 2 * (i64)row;
                hit = one[0] == id[0] && one[1] == id[1];
                row = next[row];
            }
            known[from + at] = hit;
            if (!hit && row >= 0) unsure[left++] = from + at;
        }
    }
    return left;
}

/* Runs ----------------------------------------------------------------------------------------- */

static inline int below(const u64 *one, const u64 *other) {
    return one[0] < other[0] || (one[0] == other[0] && one[1] < other[1]);
}

static inline int alike(const u64 *one, const u64 *other) {
    return one[0] == other[0] && one[1] == other[1];
}

/* One run: sorted ids, and for each prefix the first row that has it or a higher one. */
typedef struct {
    const u64 *sorted;
    i64 count;
    const void *prefixes;
    i64 wide;
    i64 prefix_bits;
} Run;

static inline u64 prefix_of(const Run *run, const u64 *id) {
    return run->prefix_bits ? id[0] >> (64 - run->prefix_bits) : 0;
}

static inline const void *start_at(const Run *run, u64 prefix) {
    return (const u8 *)run->prefixes + (prefix << (run->wide ? 3 : 2));
}

static inline i64 start_of(const Run *run, u64 prefix) {
    u64 row = run->wide ? *(const u64 *)start_at(run, prefix) : *(const u32 *)start_at(run, prefix);
    return row < (u64)run->count ? (i64)row : run->count;
}

static inline i64 row_of(const Run *run, const u64 *id, i64 row) {
    i64 end = start_of(run, prefix_of(run, id) + 1);
    while (end - row > FEW_ROWS) {
        i64 middle = row + (end - row) / 2;
        if (below(run->sorted + 2 * middle, id)) row = middle + 1;
        else end = middle;
    }
    /* Bisected or not, no row at or behind `end` is below the id. */
    while (row < end && below(run->sorted + 2 * row, id)) row++;
    return row < run->count && alike(run->sorted + 2 * row, id) ? row : -1;
}

/* Find up to AHEAD ids, those at `places` of `ids`. */
static void find_some(const Run *run, const u64 *ids, const i64 *places, i64 some, i64 *rows) {
    for (i64 at = 0; at < some; at++)
        __builtin_prefetch(start_at(run, prefix_of(run, ids + 2 * places[at])));
    for (i64 at = 0; at < some; at++) {
        rows[at] = start_of(run, prefix_of(run, ids + 2 * places[at]));
        __builtin_prefetch(run->sorted + 2 * rows[at]);
    }
    for (i64 at = 0; at < some; at++) rows[at] = row_of(run, ids + 2 * places[at], rows[at]);
}

/* Write the row of each id, -1 where it is absent. */
void run_find(const Run *run, const u64 *ids, i64 asked, i64 *rows) {
    i64 places[AHEAD];
    for (i64 from = 0; from < asked; from += AHEAD) {
        i64 some = asked - from < AHEAD ? asked - from : AHEAD;
        for (i64 at = 0; at < some; at++) places[at] = from + at;
        find_some(run, ids, places, some, rows + from);
    }
}

/* Tell of each id whether it is in any run; each is looked for until it is found. Add up in `asked_of`
 * and `found_in` how many each run was asked for, and how many it had. */
void runs_hold(const Run *runs, i64 count, const u64 *ids, i64 asked, u8 *known, i64 *asked_of,
               i64 *found_in) {
    i64 places[AHEAD], rows[AHEAD];
    for (i64 from = 0; from < asked; from += AHEAD) {
        i64 some = asked - from < AHEAD ? asked - from : AHEAD;
        for (i64 at = 0; at < some; at++) {
            places[at] = from + at;
            known[from + at] = 0;
        }
        for (i64 run = 0; run < count && some; run++) {
            find_some(runs + run, ids, places, some, rows);
            i64 left = 0;
            for (i64 at = 0; at < some; at++) {
                if (rows[at] >= 0) known[places[at]] = 1;
                else places[left++] = places[at];
            }
            asked_of[run] += some;
            found_in[run] += some - left;
            some = left;
        }
    }
}
