// A combiner on bmv2's simple_switch, for trying the rules out: docs/tofino.md.

#include <core.p4>
#include <v1model.p4>

#define COMBINER
// Microseconds.
typedef bit<48> clock_t;

#include "include/protocol.p4"
#include "include/codes.p4"
#include "include/headers.p4"
#include "include/combiner_rules.p4"
#include "include/ranks.p4"

// Entries of a register, one for each cell. Tests have cells collide, and wait.
#ifndef ENTRIES
#define ENTRIES 16384
#endif
#ifndef PATIENCE
#define PATIENCE 1000000
#endif

// ---- State of a cell, a register for each part ----

// The turn that holds the cell, and since when (rule 27.10). A packet that goes by, or leaves,
// frees the cell. The clock starts at the patience, so that cells never used are old.
control Lease(inout metadata_t m) {
    register<bit<32>>(ENTRIES) turns;
    register<clock_t>(ENTRIES) begins;

    apply {
        bit<32> turn;
        clock_t begin;
        turns.read(turn, (bit<32>) m.index);
        begins.read(begin, (bit<32>) m.index);
        if (m.lost == 1) {
            m.held = HELD_LOST;
        } else if (m.pass == PASS_FIRST && begin + PATIENCE < m.combiner.now) {
            m.held = HELD_OLD;
            turns.write((bit<32>) m.index, m.combiner.turn);
            begins.write((bit<32>) m.index, m.combiner.now);
        } else if (turn != m.combiner.turn) {
            m.held = HELD_OTHER;
        } else {
            m.held = HELD_SAME;
            if (m.pass != PASS_FIRST) {
                begins.write((bit<32>) m.index, 0);
            }
        }
    }
}

// The ranks whose values the cell has; 0 says that with this one they are all that are below.
control Held(inout metadata_t m) {
    register<bit<32>>(ENTRIES) ranks;

    apply {
        if (m.pass == PASS_FIRST && m.held == HELD_OLD) {
            ranks.write((bit<32>) m.index, m.own);
        } else if (m.pass == PASS_FIRST && m.held == HELD_SAME) {
            ranks.read(m.seen, (bit<32>) m.index);
            ranks.write((bit<32>) m.index, m.seen | m.own);
            if (m.seen == m.rest) {
                m.seen = 0;
            }
        }
    }
}

// Two words that are the packet's, or not: round and epoch, or the call and its place.
control Words(in metadata_t m, in bit<32> first, in bit<32> second, inout bit<8> agree) {
    register<bit<64>>(ENTRIES) words;

    apply {
        bit<64> held;
        if (m.pass == PASS_FIRST && m.held == HELD_OLD) {
            words.write((bit<32>) m.index, first ++ second);
        } else if (m.held == HELD_SAME) {
            words.read(held, (bit<32>) m.index);
            if (held == first ++ second) {
                agree = CALL_SAME;
            }
        }
    }
}

#define HASHES
#define CELL                                                                     \
    hash(m.index, HashAlgorithm.crc16, 16w0,                                     \
        { h.switchml.job, h.switchml.epoch, h.switchml.slot, h.switchml.rank[15:5] }, \
        32w0 + ENTRIES);                                                         \
    hash(m.combiner.turn, HashAlgorithm.crc32, 32w0,                             \
        { h.switchml.job, h.switchml.epoch, h.switchml.slot, h.switchml.rank[15:5], \
          h.switchml.round, h.switchml.fingerprint, m.shape },                   \
        64w0x100000000);                                                         \
    m.combiner.place = PLACE;

#include "include/bmv2/sums.p4"
#include "include/lanes.p4"
#include "include/cell.p4"
#include "include/bmv2/target.p4"
#include "include/losses.p4"
#include "include/combiner.p4"

// The additional salt in the check word of an even number of contributions (rule 3.5).
control FinishCheck(inout headers_t h, in metadata_t m) {
    Salt() one;

    apply {
        if (m.combiner.salts != 0) {
            bit<32> salt;
            one.apply(h, salt);
            h.switchml.check = h.switchml.check + salt;
        }
    }
}

#include "include/bmv2/pipeline.p4"
