// A combiner on Tofino 1: docs/research/tofino.md.

#include <core.p4>
#include <tna.p4>

#define SEES_FCS

#define COMBINER
// 65.536 microseconds.
typedef bit<32> clock_t;

#include "include/protocol.p4"
#include "include/codes.p4"
#include "include/headers.p4"
#include "include/combiner_rules.p4"
#include "include/ranks.p4"

// Entries of a register, one for each cell: as many as a hash has values.
#define ENTRIES 16384
// 67 milliseconds.
#define PATIENCE 1024
// The clock begins here, so that a cell that was never used, or is free, is old at once.
#define FIRST_TICK (PATIENCE + 1)

// ---- State of a cell, a register for each part ----

struct lease_t {
    bit<32> turn;
    bit<32> begin;
}

// The turn that holds the cell, and since when (rule 27.10). A packet that goes by, or leaves,
// frees the cell.
control Lease(inout metadata_t m) {
    Register<lease_t, index_t>(ENTRIES) begins;
    RegisterAction<lease_t, index_t, bit<8>>(begins) claim = {
        void apply(inout lease_t lease, out bit<8> held) {
            bool same = lease.turn == m.combiner.turn;
            bool old = lease.begin + PATIENCE < m.combiner.now;
            held = this.predicate(same, old);
            if (old) {
                lease.turn = m.combiner.turn;
                lease.begin = m.combiner.now;
            }
        }
    };
    RegisterAction<lease_t, index_t, bit<8>>(begins) release = {
        void apply(inout lease_t lease, out bit<8> held) {
            bool same = lease.turn == m.combiner.turn;
            held = this.predicate(same);
            if (same) { lease.begin = 0; }
        }
    };
    action lose() { m.held = HELD_LOST; }
    action do_claim() { m.held = claim.execute(m.index); }
    action do_release() { m.held = release.execute(m.index); }
    table pass {
        key = {
            m.lost: ternary;
            m.pass: ternary;
        }
        actions = { lose; do_claim; do_release; NoAction; }
        const entries = {
            (1, _): lose();
            (_, PASS_FIRST): do_claim();
            (_, PASS_BY): do_release();
            (_, PASS_RESULT): do_release();
        }
        const default_action = NoAction();
        size = 4;
    }
    apply { pass.apply(); }
}

// The ranks whose values the cell has; 0 says that with this one they are all that are below.
control Held(inout metadata_t m) {
    Register<bit<32>, index_t>(ENTRIES) ranks;
    RegisterAction<bit<32>, index_t, bit<32>>(ranks) start = {
        void apply(inout bit<32> held, out bit<32> held_before) {
            held = m.own;
            held_before = 0;
        }
    };
    RegisterAction<bit<32>, index_t, bit<32>>(ranks) join = {
        void apply(inout bit<32> held, out bit<32> held_before) {
            if (held == m.rest) {
                held_before = 0;
            } else {
                held_before = held;
            }
            held = held | m.own;
        }
    };
    action do_start() { start.execute(m.index); }
    action do_join() { m.seen = join.execute(m.index); }
    table held {
        key = {
            m.pass: exact;
            m.held: exact;
        }
        actions = { do_start; do_join; NoAction; }
        const entries = {
            (PASS_FIRST, HELD_OLD): do_start();
            (PASS_FIRST, HELD_OLD_SAME): do_start();
            (PASS_FIRST, HELD_SAME): do_join();
        }
        const default_action = NoAction();
        size = 4;
    }
    apply { held.apply(); }
}

struct words_t {
    bit<32> first;
    bit<32> second;
}

// Two words that are the packet's, or not: round and epoch, or the call and its place.
control Words(in metadata_t m, in bit<32> first, in bit<32> second, inout bit<8> agree) {
    Register<words_t, index_t>(ENTRIES) words;
    RegisterAction<words_t, index_t, bit<8>>(words) start = {
        void apply(inout words_t held, out bit<8> same) {
            same = 0;
            held.first = first;
            held.second = second;
        }
    };
    RegisterAction<words_t, index_t, bit<8>>(words) compare = {
        void apply(inout words_t held, out bit<8> same) {
            bool same_first = held.first == first;
            bool same_second = held.second == second;
            same = this.predicate(same_first, same_second);
        }
    };
    action do_start() { start.execute(m.index); }
    action do_compare() { agree = compare.execute(m.index); }
    table held {
        key = {
            m.pass: exact;
            m.held: exact;
        }
        actions = { do_start; do_compare; NoAction; }
        const entries = {
            (PASS_FIRST, HELD_OLD): do_start();
            (PASS_FIRST, HELD_OLD_SAME): do_start();
            (PASS_FIRST, HELD_SAME): do_compare();
            (PASS_RESULT, HELD_SAME): do_compare();
        }
        const default_action = NoAction();
        size = 4;
    }
    apply { held.apply(); }
}

// Tests have cells collide.
#ifdef ONE_CELL
#define CELL_INDEX 0
#else
#define CELL_INDEX                                                               \
    (index_t) cell_hash.get(                                                     \
        { h.switchml.job, h.switchml.epoch, h.switchml.slot, h.switchml.rank[15:5] })
#endif
// An identity is how this chip puts fields side by side. A table has room for 32 bits of hashes, so
// each number has one of its own, without a key.
#define HASHES                                                                   \
    Hash<bit<14>>(HashAlgorithm_t.CRC16) cell_hash;                              \
    Hash<bit<32>>(HashAlgorithm_t.CRC32) turn_hash;                              \
    Hash<bit<32>>(HashAlgorithm_t.IDENTITY) place_hash;                          \
    action find_cell() { m.index = CELL_INDEX; }                                 \
    action find_turn() {                                                         \
        m.combiner.turn = turn_hash.get(                                         \
            { h.switchml.job, h.switchml.epoch, h.switchml.slot, h.switchml.rank[15:5], \
              h.switchml.round, h.switchml.fingerprint, m.shape });              \
    }                                                                            \
    action find_place() { m.combiner.place = place_hash.get({ PLACE }); }        \
    table cells { actions = { find_cell; } const default_action = find_cell(); size = 1; } \
    table turns { actions = { find_turn; } const default_action = find_turn(); size = 1; } \
    table places { actions = { find_place; } const default_action = find_place(); size = 1; }
#define CELL cells.apply(); turns.apply(); places.apply();

#include "include/tofino/sums.p4"
#include "include/lanes.p4"
#include "include/cell.p4"
#include "include/tofino/target.p4"
#include "include/losses.p4"
#include "include/combiner.p4"
#include "include/tofino/pipeline.p4"
