/* worker/kv/tiers/file_table.c - the table of segments, and the index that leads to them.
 *
 * Heat decides what goes: a segment has one half for each unit when it is written and one more for
 * each load, and all of it halves while half as many segments are begun as the folder holds. The
 * youngest quarter stays while there is another, so that what is new has the time to be loaded.
 * Time is counted in segments, so an idle night and a clock that jumps change nothing. */
#include <assert.h>
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/kv/tiers/file_internal.h"

static double heat_now(const struct file_tier *f, const struct file_segment *s) {
    double half_life = MAX(1.0, (double)f->max_bytes / (double)f->segment_bytes / 2);

    return s->heat * exp2(-(double)(f->tick - s->heat_tick) / half_life);
}

static void add_heat(struct file_tier *f, struct file_segment *s, double heat) {
    s->heat = heat_now(f, s) + heat;
    s->heat_tick = f->tick;
}

/* The entry of a key whose segment is there. */
static struct file_entry *find_live(struct file_tier *f, const struct unit_key *key) {
    struct file_entry *e = file_index_find(f->index, key);

    return e && !f->segments[e->segment - 1].is_gone ? e : NULL;
}

bool file_find_place(struct file_tier *f, const struct unit_key *key, struct file_place *out) {
    struct file_entry *e = find_live(f, key);

    if (!e) return false;
    out->slot = e->segment - 1;
    out->place = e->place;
    out->id = f->segments[out->slot].id;
    return true;
}

void file_note_use(struct file_tier *f, const struct unit_key *key) {
    struct file_entry *e = find_live(f, key);

    if (!e) return;
    if (e->hits < 255) e->hits++;
    add_heat(f, &f->segments[e->segment - 1], 1);
}

void file_forget(struct file_tier *f, const struct unit_key *key, const struct file_place *at) {
    struct file_entry *e = find_live(f, key);

    if (!e || e->segment - 1 != at->slot || e->place != at->place) return;
    file_count_held(f, at->slot, key, -1);
    f->segments[at->slot].n_live--;
    f->n_live--;
    f->n_dropped++;
    file_index_erase(f->index, e);
}

bool file_enter(struct file_tier *f, const struct unit_key *key, uint32_t slot, uint32_t place,
                uint32_t hits) {
    struct file_entry *e = file_index_find(f->index, key);

    if (e && !f->segments[e->segment - 1].is_gone) return false;
    if (!e) e = file_index_insert(f->index, key);
    if (!e) return false;
    e->segment = slot + 1;
    e->place = place & FILE_INDEX_MAX_PLACE;
    e->hits = (uint8_t)MIN(hits, 255);
    f->segments[slot].n_live++;
    f->n_live++;
    file_count_held(f, slot, key, 1);
    add_heat(f, &f->segments[slot], 0.5 + hits);
    return true;
}

static uint64_t hash_of(struct segment_id id) {
    return rng_mix(id.owner ^ rng_mix(id.n));
}

struct file_segment *file_segment_of(struct file_tier *f, struct segment_id id) {
    void *found = map_find(&f->slots, hash_of(id));
    struct file_segment *s = found ? &f->segments[(uintptr_t)found - 1] : NULL;

    return s && s->id.owner == id.owner && s->id.n == id.n ? s : NULL;
}

uint32_t file_add_segment(struct file_tier *f, struct segment_id id, uint64_t bytes) {
    uint32_t slot = 0;

    while (slot < f->n_segments && f->segments[slot].is_used)
        slot++;
    if (slot == f->n_segments) {
        uint32_t n = MAX(16, 2 * f->n_segments);

        f->segments = mem_realloc(f->segments, n * sizeof(*f->segments));
        for (uint32_t i = f->n_segments; i < n; i++)
            f->segments[i] = (struct file_segment){0};
        f->n_segments = n;
    }
    f->segments[slot] = (struct file_segment){.id = id,
                                              .is_used = true,
                                              .bytes = bytes,
                                              .heat_tick = f->tick,
                                              .begun_tick = f->tick,
                                              .seen_scan = f->n_scans};
    f->known_bytes += bytes;
    map_insert(&f->slots, hash_of(id), (void *)(uintptr_t)(slot + 1));
    return slot;
}

void file_set_gone(struct file_tier *f, uint32_t slot) {
    struct file_segment *s = &f->segments[slot];

    if (!s->is_used || s->is_gone) return;
    s->is_gone = true;
    f->known_bytes -= s->bytes;
    f->n_live -= s->n_live;
    f->n_dropped += s->n_live;
    f->n_held -= s->n_held;
    s->n_live = s->n_held = 0;
    f->n_gone++;
    map_erase(&f->slots, hash_of(s->id));
}

uint32_t file_coldest(struct file_tier *f, bool of_others, uint64_t max_held) {
    double least[2] = {INFINITY, INFINITY}, heat,
           youth = (double)f->max_bytes / f->segment_bytes / 4;
    uint32_t coldest[2] = {UINT32_MAX, UINT32_MAX}; /* of the old, of the young */

    for (uint32_t i = 0; i < f->n_segments; i++) {
        const struct file_segment *s = &f->segments[i];
        bool is_others = s->id.owner != f->owner && !s->is_orphan;
        bool is_young = (double)(f->tick - s->begun_tick) <= youth;

        if (!s->is_used || s->is_gone || !s->is_sealed || is_others != of_others) continue;
        if (s->n_held > max_held || (s->is_held_elsewhere && max_held != UINT64_MAX)) continue;
        /* Of the young the oldest, whatever its heat. */
        heat = is_young ? (double)s->begun_tick : heat_now(f, s);
        if (heat >= least[is_young]) continue;
        least[is_young] = heat;
        coldest[is_young] = i;
    }
    return coldest[0] != UINT32_MAX ? coldest[0] : coldest[1];
}

static bool is_gone(const void *arg, uint32_t segment) {
    return ((const struct file_tier *)arg)->segments[segment].is_gone;
}

void file_sweep(struct file_tier *f) {
    uint32_t n_segments;

    pthread_mutex_lock(&f->lock);
    n_segments = f->n_gone > 0 ? f->n_segments : 0;
    /* Segments that go meanwhile keep their slots until the next sweep. */
    for (uint32_t i = 0; i < n_segments; i++)
        f->segments[i].seen_scan = f->segments[i].is_gone ? UINT64_MAX : f->segments[i].seen_scan;
    pthread_mutex_unlock(&f->lock);
    if (n_segments == 0) return;
    for (uint32_t shard = 0; shard < FILE_INDEX_SHARDS; shard++) {
        pthread_mutex_lock(&f->lock);
        file_index_sweep(f->index, shard, is_gone, f);
        pthread_mutex_unlock(&f->lock);
    }
    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < n_segments; i++) {
        if (!f->segments[i].is_gone || f->segments[i].seen_scan != UINT64_MAX) continue;
        if (f->segments[i].is_locked) continue; /* until the next scan */
        f->segments[i] = (struct file_segment){0};
        f->n_gone--;
    }
    pthread_mutex_unlock(&f->lock);
}

struct tally {
    struct file_tier *f;
    uint64_t *n_live, *n_held;
};

static void count(void *arg, const struct file_entry *e) {
    struct tally *t = arg;

    assert(e->segment - 1 < t->f->n_segments && t->f->segments[e->segment - 1].is_used);
    t->n_live[e->segment - 1]++;
    t->n_held[e->segment - 1] += file_is_held(t->f, &e->key);
}

void file_table_check(struct file_tier *f) {
    struct tally t = {f, mem_calloc(f->n_segments + 1, sizeof(uint64_t)),
                      mem_calloc(f->n_segments + 1, sizeof(uint64_t))};
    uint64_t bytes = 0, n_live = 0, n_held = 0, n_gone = 0;

    file_index_check(f->index, count, &t);
    for (uint32_t i = 0; i < f->n_segments; i++) {
        const struct file_segment *s = &f->segments[i];

        if (!s->is_used) continue;
        n_gone += s->is_gone;
        if (s->is_gone) continue;
        assert(t.n_live[i] == s->n_live && t.n_held[i] == s->n_held);
        assert(file_segment_of(f, s->id) == s);
        bytes += s->bytes;
        n_live += s->n_live;
        n_held += s->n_held;
    }
    assert(bytes == f->known_bytes && n_live == f->n_live && n_gone == f->n_gone);
    assert(n_held == f->n_held);
    mem_free(t.n_live);
    mem_free(t.n_held);
}
