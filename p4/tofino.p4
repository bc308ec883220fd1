// The aggregator on Tofino 1: docs/research/tofino.md.

#include <core.p4>
#include <tna.p4>

#define SEES_FCS

#include "include/protocol.p4"
#include "include/codes.p4"
#include "include/headers.p4"
#include "include/rules.p4"
#include "include/ranks.p4"

// Entries of a register: two sets for each slot.
#define ENTRIES 20480

// No stage is left to sum lanes: a contribution's, to verify it (rule 24.3), or a maximum's, for
// its check word (rule 24.4).
#define MAXIMUM_FLAGS 8w0

// ---- State of a set, a register for each part ----

// The round of the set (rule 24.5). Only a packet's first pass begins a round.
control Tag(in headers_t h, inout metadata_t m) {
    Register<bit<32>, index_t>(ENTRIES) rounds;
    RegisterAction<bit<32>, index_t, bit<8>>(rounds) advance = {
        void apply(inout bit<32> round, out bit<8> held) {
            bool same = round == h.switchml.round;
            // The chip cannot take a difference modulo 2^32 here, so the rounds are compared for
            // equality.
            bool before = round == m.previous;
            held = this.predicate(same, before);
            if (before) { round = h.switchml.round; }
        }
    };
    RegisterAction<bit<32>, index_t, bit<8>>(rounds) compare = {
        void apply(inout bit<32> round, out bit<8> held) {
            bool same = round == h.switchml.round;
            held = this.predicate(same);
        }
    };
#ifdef PARTS
    // Of a later part than a packet's first: packets may not have had it for many rounds.
    RegisterAction<bit<32>, index_t, bit<8>>(rounds) follow = {
        void apply(inout bit<32> round, out bit<8> held) {
            bool same = round == h.switchml.round;
            bool other = round != m.previous;
            held = this.predicate(same, other);
            round = h.switchml.round;
        }
    };
    action do_follow() { m.held = follow.execute(m.index); }
#define TAG_KEY m.lost: ternary; m.pass: ternary; m.part: ternary;
#define TAG_ACTIONS lose; do_advance; do_compare; do_follow; NoAction;
#define TAG_ENTRIES                                                              \
    (1, _, _): lose();                                                           \
    (_, FIRST, 0): do_advance();                                                 \
    (_, FIRST, _): do_follow();                                                  \
    (_, QUERY, _): do_compare();                                                 \
    (_, PASS_RESULT, _): do_compare();
#else
#define TAG_KEY m.lost: ternary; m.pass: ternary;
#define TAG_ACTIONS lose; do_advance; do_compare; NoAction;
#define TAG_ENTRIES                                                              \
    (1, _): lose();                                                              \
    (_, PASS_FIRST): do_advance();                                               \
    (_, PASS_EMPTY): do_advance();                                               \
    (_, PASS_QUERY): do_compare();                                               \
    (_, PASS_RESULT): do_compare();
#endif
    action lose() { m.held = HELD_LOST; }
    action do_advance() { m.held = advance.execute(m.index); }
    action do_compare() { m.held = compare.execute(m.index); }
    table pass {
        key = { TAG_KEY }
        actions = { TAG_ACTIONS }
        const entries = { TAG_ENTRIES }
        const default_action = NoAction();
        size = 8;
    }
    apply { pass.apply(); }
}

// The ranks that are in.
control Seen(inout metadata_t m) {
    Register<bit<32>, index_t>(ENTRIES) ranks;
    RegisterAction<bit<32>, index_t, bit<32>>(ranks) start = {
        void apply(inout bit<32> seen, out bit<32> seen_before) {
            seen = m.own;
            seen_before = 0;
        }
    };
    RegisterAction<bit<32>, index_t, bit<32>>(ranks) join = {
        void apply(inout bit<32> seen, out bit<32> seen_before) {
            seen_before = seen;
            seen = seen | m.own;
        }
    };
    // A rank without payload that would be the last does not join: it is treated as if it were in
    // already (rule 8.13).
    RegisterAction<bit<32>, index_t, bit<32>>(ranks) join_empty = {
        void apply(inout bit<32> seen, out bit<32> seen_before) {
            if (seen == m.rest) {
                seen_before = seen | m.own;
            } else {
                seen_before = seen;
                seen = seen | m.own;
            }
        }
    };
    action do_start() { start.execute(m.index); }
    action do_join() { m.seen = join.execute(m.index); }
    action do_join_empty() { m.seen = join_empty.execute(m.index); }
    table held {
        key = {
            m.pass: ternary;
            m.held: exact;
        }
        actions = { do_start; do_join; do_join_empty; NoAction; }
        const entries = {
            (FIRST, HELD_BEFORE): do_start();
            (FIRST, HELD_SAME): do_join();
            (PASS_EMPTY, HELD_BEFORE): do_start();
            (PASS_EMPTY, HELD_SAME): do_join_empty();
        }
        const default_action = NoAction();
        size = 4;
    }
    apply { held.apply(); }
}

struct call_t {
    bit<32> fingerprint;
    bit<32> shape;
}

// The ranks' call.
control Call(in headers_t h, inout metadata_t m) {
    Register<call_t, index_t>(ENTRIES) calls;
    RegisterAction<call_t, index_t, bit<8>>(calls) start = {
        void apply(inout call_t call, out bit<8> same) {
            same = 0;
            call.fingerprint = h.switchml.fingerprint;
            call.shape = (bit<32>) m.shape;
        }
    };
    RegisterAction<call_t, index_t, bit<8>>(calls) compare = {
        void apply(inout call_t call, out bit<8> same) {
            bool same_fingerprint = call.fingerprint == h.switchml.fingerprint;
            bool same_shape = call.shape == (bit<32>) m.shape;
            same = this.predicate(same_fingerprint, same_shape);
        }
    };
    action do_start() { start.execute(m.index); }
    action do_compare() { m.call = compare.execute(m.index); }
    table held {
        key = {
            m.pass: ternary;
            m.held: exact;
        }
        actions = { do_start; do_compare; NoAction; }
        const entries = {
            (FIRST, HELD_BEFORE): do_start();
            (FIRST, HELD_SAME): do_compare();
            (PASS_EMPTY, HELD_BEFORE): do_start();
            (PASS_EMPTY, HELD_SAME): do_compare();
        }
        const default_action = NoAction();
        size = 4;
    }
    apply { held.apply(); }
}

// The number of missing ranks.
control Missing(in headers_t h, inout metadata_t m) {
    Register<bit<8>, index_t>(ENTRIES) counts;
    RegisterAction<bit<8>, index_t, bit<8>>(counts) start = {
        void apply(inout bit<8> missing, out bit<8> now) {
            missing = m.others;
            now = missing;
        }
    };
    RegisterAction<bit<8>, index_t, bit<8>>(counts) join = {
        void apply(inout bit<8> missing, out bit<8> now) {
            missing = missing - 1;
            now = missing;
        }
    };
    RegisterAction<bit<8>, index_t, bit<8>>(counts) read = {
        void apply(inout bit<8> missing, out bit<8> now) { now = missing; }
    };
    action do_start() { m.missing = start.execute(m.index); }
    action do_join() { m.missing = join.execute(m.index); }
    action do_read() { m.missing = read.execute(m.index); }
    table rules {
        key = { RULE_KEY }
        actions = { do_start; do_join; do_read; NoAction; }
        const entries = {
            RULES(do_start(), do_read(), do_join(), do_join())
            EMPTY_RULES(do_start(), NoAction(), do_join())
        }
        const default_action = NoAction();
        size = 128;
    }
    apply { rules.apply(); }
}

#include "include/tofino/sums.p4"
#include "include/lanes.p4"
#include "include/slot.p4"
#include "include/tofino/target.p4"
#include "include/losses.p4"
#include "include/aggregator.p4"
#include "include/tofino/pipeline.p4"
