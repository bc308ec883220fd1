// The aggregator on bmv2's simple_switch, for trying the rules out: docs/tofino.md.
//
// simple_switch runs ingress in one thread, so accesses to registers need no lock.

#include <core.p4>
#include <v1model.p4>

// Ranks by RoCEv2 (section 37) are served, too.
#ifndef PARTS
#define ROCE
#endif

#include "include/protocol.p4"
#include "include/codes.p4"
#include "include/headers.p4"
#include "include/rules.p4"
#include "include/ranks.p4"

// Entries of a register: two sets for each slot.
#define ENTRIES 16384

// Contributions are verified (rule 7.11), and a maximum's check word is made in egress (rule 3.4),
// where all lanes are there in one pass.
#ifdef PARTS
#define MAXIMUM_FLAGS 8w0
#else
#define MAXIMUM_FLAGS FLAG_CHECKED
#endif

#ifdef PARTS
#define IS_LATER_PART m.part != 0
#else
#define IS_LATER_PART false
#endif
#define IS_FIRST ((m.pass & ~PART_NOT_LAST) == PASS_FIRST || m.pass == PASS_EMPTY)

// ---- State of a set, a register for each part ----

// The round of the set (rule 24.5). Only a packet's first pass begins a round.
control Tag(in headers_t h, inout metadata_t m) {
    register<bit<32>>(ENTRIES) rounds;

    apply {
        bit<32> round;
        rounds.read(round, (bit<32>) m.index);
        if (m.lost == 1) {
            m.held = HELD_LOST;
        } else if (m.pass == PASS_NONE || (m.pass & PASS_TURNED_AWAY) != 0) {
            m.held = 0;
        } else if (round == h.switchml.round) {
            m.held = HELD_SAME;
        } else if (IS_FIRST && (round == m.previous || IS_LATER_PART)) {
            m.held = HELD_BEFORE;
            rounds.write((bit<32>) m.index, h.switchml.round);
        } else {
            m.held = HELD_OTHER;
        }
    }
}

// The ranks that are in. A rank without payload that would be the last does not join: it is treated
// as if it were in already (rule 8.13).
control Seen(inout metadata_t m) {
    register<bit<32>>(ENTRIES) ranks;

    apply {
        if (IS_FIRST && m.held == HELD_BEFORE) {
            ranks.write((bit<32>) m.index, m.own);
        } else if (IS_FIRST && m.held == HELD_SAME) {
            ranks.read(m.seen, (bit<32>) m.index);
            if (m.pass == PASS_EMPTY && m.seen == m.rest) {
                m.seen = m.own;
            } else {
                ranks.write((bit<32>) m.index, m.seen | m.own);
            }
        }
    }
}

// The ranks' call: fingerprint and shape.
control Call(in headers_t h, inout metadata_t m) {
    register<bit<40>>(ENTRIES) calls;

    apply {
        bit<40> call;
        if (IS_FIRST && m.held == HELD_BEFORE) {
            calls.write((bit<32>) m.index, h.switchml.fingerprint ++ m.shape);
        } else if (IS_FIRST && m.held == HELD_SAME) {
            calls.read(call, (bit<32>) m.index);
            if (call == h.switchml.fingerprint ++ m.shape) {
                m.call = CALL_SAME;
            }
        }
    }
}

// The number of missing ranks.
control Missing(inout headers_t h, inout metadata_t m) {
    register<bit<8>>(ENTRIES) counts;

    action start() {
        m.missing = m.others;
        counts.write((bit<32>) m.index, m.missing);
    }

    action join() {
        bit<8> old;
        counts.read(old, (bit<32>) m.index);
        m.missing = old - 1;
        counts.write((bit<32>) m.index, m.missing);
    }

    action read() { counts.read(m.missing, (bit<32>) m.index); }

    table rules {
        key = { RULE_KEY }
        actions = { start; join; read; NoAction; }
        const entries = {
            RULES(start(), read(), join(), join())
            EMPTY_RULES(start(), NoAction(), join())
        }
        const default_action = NoAction();
    }

    apply { rules.apply(); }
}

#include "include/bmv2/sums.p4"
#include "include/lanes.p4"
#include "include/slot.p4"
#include "include/bmv2/target.p4"
#include "include/losses.p4"
#include "include/aggregator.p4"

// The check words of control replies, and of maxima (rule 3.4).
control FinishCheck(inout headers_t h, in metadata_t m) {
    CheckWord() check_word;

    apply {
        if (h.control_reply.isValid()) {
            check_word.apply(h, 1, h.switchml.check);
#ifndef PARTS
        } else if (m.step == STEP_SECOND && h.switchml.op == OP_MAX) {
            check_word.apply(h, 1 + (bit<32>) m.others, h.switchml.check);
#endif
        }
    }
}

#include "include/bmv2/pipeline.p4"
