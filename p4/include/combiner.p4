// A frame's way through a combiner: from below, to its cell and to the parent; from the parent, to
// the ranks below; or the plain switch. Ranks see it as the aggregator (rule 27.1), so the control
// has that name.
//
// Tables are filled by the control plane. The front defines how frames leave, as in
// `aggregator.p4`; CELL computes the index of the packet's cell, TURN and PLACE the numbers that
// identify its contents.
//
// What goes up is addressed to the parent before the verdict: after that there must be nothing more
// to do, because the stages behind it belong to the lanes.

// The number of endpoints: for each job, the data port, a port for each rank, and one for RESULTs
// to all.
#define ENDPOINTS MAX_MEMBERS + 2 * MAX_JOBS

control Aggregator(inout headers_t h, inout metadata_t m, ARCHITECTURE_PARAMETERS) {
    Cell() cell;
    HASHES

#include "envelope.p4"

    // ---- Admission from below: rule 27.1 ----

    // `own`: the rank's bit. `rest`: the bits of the other ranks of its group that are below.
    // `surplus`, `salts`: the additional terms in the check word of a partial sum of all. `from`:
    // the port from which the rank's packets go up.
    action admit(bit<32> own, bit<32> rest, bit<32> surplus, bit<8> salts, bit<16> from) {
        m.pass = m.first;
        m.own = own;
        m.rest = rest;
        m.combiner.surplus = surplus;
        m.combiner.salts = salts;
        h.udp.src = from;
    }

    // For partial sums, contributions with no others to be combined with, and all of an aborted
    // job.
    action pass_by(bit<16> from) {
        m.pass = PASS_BY;
        h.udp.src = from;
    }

    action of_nobody() { m.outcome = OUTCOME_BAD_RANK; }

    // Contributions and partial sums. `kind` and `set` match partial sums, whose set (aux) may only
    // have bits of ranks at the sender's place.
    table members {
        key = {
            m.is_contribution: ternary;
            m.bad_ip_checksum: ternary;
            h.switchml.flags: ternary @name("flags");
            h.switchml.kind: ternary @name("kind");
            h.switchml.job: ternary @name("job");
            h.switchml.epoch: ternary @name("epoch");
            h.switchml.rank: ternary @name("rank");
            h.switchml.aux: ternary @name("set");
            h.switchml.slot: ternary @name("slot");
            m.port: ternary @name("port");
            h.ethernet.src: ternary @name("mac");
            h.ipv4.src: ternary @name("address");
            h.ipv4.dst: ternary @name("aggregator");
            h.udp.src: ternary @name("udp_port");
        }
        actions = { admit; pass_by; NoAction; }
        const default_action = NoAction();
        size = 2 * MAX_MEMBERS;
    }

    action resume() {
        m.pass = h.pass.kind;
        m.index = h.pass.index;
        m.is_answer = 1;
        m.combiner.turn = h.pass.turn;
        m.combiner.salts = h.pass.salts;
    }

    // The flags that a partial sum of this contribution alone would have.
    action with_flags(bit<8> value) { m.flags = value; }

    table own_flags {
        key = {
            h.ipv4.ecn: ternary;
            h.switchml.flags: ternary;
        }
        actions = { with_flags; }
        const entries = {
            (ECN_CE, _): with_flags(FLAG_CHECKED | FLAG_CE);
            (_, FLAG_CE &&& FLAG_CE): with_flags(FLAG_CHECKED | FLAG_CE);
        }
        const default_action = with_flags(FLAG_CHECKED);
        size = 2;
    }

    // ---- To the parent: rule 27.2 ----

    // The UDP port to send from is the rank's, so it comes with the rank's entries.
    action address_to_parent(bit<48> mac, bit<32> address, bit<16> udp_port) {
        h.ethernet.src = h.ethernet.dst;
        h.ethernet.dst = mac;
        h.ipv4.src = h.ipv4.dst;
        h.ipv4.dst = address;
        h.udp.dst = udp_port;
        finish_ip();
    }

    action up(bit<48> mac, bit<32> address, bit<16> udp_port, port_t port) {
        address_to_parent(mac, address, udp_port);
        m.port = port;
        TO_PORT(port)
    }

    action vacant() { DROP }

    // The way of contributions and partial sums.
    table uplinks {
        key = { h.switchml.job: exact @name("job"); }
        actions = { up; vacant; }
        const default_action = vacant();
        size = MAX_JOBS;
    }

    action report_congestion() {
        h.ipv4.ecn = ECN_ECT0;
        h.switchml.flags = h.switchml.flags | FLAG_CE;
    }

    // ---- Outcomes ----

    action held() {
        m.outcome = OUTCOME_HELD;
        DROP
    }

    action duplicate() {
        m.outcome = OUTCOME_DUPLICATE;
        DROP
    }

    // The cell was claimed since the packet's first pass: its contents were overwritten (rule
    // 27.12).
    action forgotten() { DROP }

    // Rule 27.14, for all ranks below.
    action complete() {
        m.outcome = OUTCOME_COMBINED;
        h.switchml.kind = KIND_PARTIAL;
        h.switchml.rank = h.switchml.rank & 0xFFE0;
        h.switchml.flags = m.union | m.flags;
        h.switchml.check = h.switchml.check + m.combiner.surplus;
        h.switchml.aux = m.own | m.rest;
        once_more(PASS_RESULT);
        h.pass.turn = m.combiner.turn;
        h.pass.salts = m.combiner.salts;
    }

    action leave() {
        h.pass.setInvalid();
        TO_PORT(m.port)
    }

    // Egress adds the salt that is missing in the check word.
    action leave_by_egress() {
        h.pass.setInvalid();
        THROUGH_EGRESS_TO_PORT(m.port)
    }

    action pass_on() {
        m.outcome = OUTCOME_PASSED;
        m.combiner.salts = 0;
    }

    table verdict {
        key = {
            m.step: exact;
            m.combiner.salts: ternary;
        }
        actions = { held; duplicate; forgotten; complete; leave; leave_by_egress; pass_on; lost; }
        const entries = {
            (STEP_START, _): held();
            (STEP_ADD, _): held();
            (STEP_AGAIN, _): duplicate();
            (STEP_COMPLETE, _): complete();
            (STEP_SECOND, 0): leave();
            (STEP_SECOND, _): leave_by_egress();
            (STEP_PASS, _): pass_on();
            (STEP_LOST, _): lost();
        }
        const default_action = forgotten();
        size = 8;
    }

    // ---- From the parent: rule 27.4 ----

    // Sends the packet as a RESULT to all of this combiner's own.
    action to_group(group_t group, bit<48> mac, bit<32> address, bit<16> udp_port) {
        m.outcome = OUTCOME_TO_ALL;
        h.ethernet.src = h.ethernet.dst;
        h.ethernet.dst = mac;
        h.ipv4.src = h.ipv4.dst;
        h.ipv4.dst = address;
        h.udp.src = DATA_PORT;
        h.udp.dst = udp_port;
        TO_GROUP(group)
    }

    action to_rank(bit<48> mac, bit<32> address, bit<16> udp_port, port_t port) {
        m.outcome = OUTCOME_TO_RANK;
        h.ethernet.src = h.ethernet.dst;
        h.ethernet.dst = mac;
        h.ipv4.src = h.ipv4.dst;
        h.ipv4.dst = address;
        h.udp.src = DATA_PORT;
        h.udp.dst = udp_port;
        TO_PORT(port)
    }

    // No field of the key has the name of an action's parameter: the model's harness may confuse
    // them.
    table answers {
        key = {
            h.switchml.job: exact @name("job");
            h.switchml.epoch: exact @name("epoch");
            h.switchml.rank: exact @name("rank");
            m.port: exact @name("uplink");
            h.ipv4.src: exact @name("parent");
            h.udp.src: exact @name("parent_port");
            h.ipv4.dst: exact @name("aggregator");
            h.udp.dst: exact @name("own_port");
        }
        actions = { to_group; to_rank; NoAction; }
        const default_action = NoAction();
        size = MAX_MEMBERS + MAX_JOBS;
    }

    // Rule 27.3.
    action greet(
        bit<16> from, bit<48> parent_mac, bit<32> parent, bit<16> parent_port, port_t uplink)
    {
        m.is_member = 1;
        m.outcome = OUTCOME_HELLO_PASSED;
        h.udp.src = from;
        address_to_parent(parent_mac, parent, parent_port);
        TO_PORT(uplink)
    }

#include "admission.p4"

    apply {
        if (h.pass.isValid()) {
            resume();
        } else {
            CELL
            // A partial sum of nobody. The parser has no register left to compare this.
            if (m.is_contribution == 1 && h.switchml.kind == KIND_PARTIAL
                && h.switchml.aux == 0)
            {
                of_nobody();
            } else {
                members.apply();
            }
        }
        aggregators.apply();
        if (m.pass == PASS_NONE) {
            forgeries.apply();
        }
        own_flags.apply();
        if (m.pass != PASS_NONE) {
            cell.apply(h, m);
            if (m.pass != PASS_RESULT) {
                uplinks.apply();
                if (h.ipv4.ecn == ECN_CE) {
                    report_congestion();
                }
            }
            verdict.apply();
        } else if (m.outcome == OUTCOME_SPOOFED) {
            nowhere();
        } else if (m.is_ours == 1 && m.lost == 1) {
            lost();
        } else if (m.is_ours == 1) {
            if (m.combiner.is_from_parent == 1 && m.bad_ip_checksum == 0
                && m.outcome < OUTCOME_SPOOFED) {
                if (answers.apply().hit) {
                    m.is_member = 1;
                    finish_ip();
                }
            } else if (m.is_hello == 1 && m.bad_ip_checksum == 0) {
                if (bindings.apply().miss) {
                    newcomers.apply();
                }
            }
            if (m.is_member == 0) {
                refusals.apply();
            } else if (h.ipv4.ecn == ECN_CE) {
                report_congestion();
            }
        } else {
            if (m.outcome > OUTCOME_SPOOFED) {
                not_ours();
            }
            stations.apply();
        }
    }
}
