// Part of a role's control: packets for the role that are not admitted contributions; and the plain
// switch for all other frames. The role defines what an admitted HELLO does: `greet`.

    action ours() { m.is_ours = 1; }

    table aggregators {
        key = {
            h.udp.isValid(): exact @name("is_udp");
            h.ipv4.dst: exact @name("aggregator");
            h.udp.dst: exact @name("udp_port");
        }
        actions = { ours; NoAction; }
        const default_action = NoAction();
        size = ENDPOINTS;
    }

    // HELLOs from where their rank lives.
    table bindings {
        key = {
            h.switchml.job: exact @name("job");
            h.switchml.epoch: exact @name("epoch");
            h.switchml.rank: exact @name("rank");
            h.switchml.aux: exact @name("secret");
            m.port: exact @name("port");
            h.ethernet.src: exact @name("mac");
            h.ipv4.src: exact @name("address");
            h.udp.src: exact @name("udp_port");
        }
        actions = { greet; NoAction; }
        const default_action = NoAction();
        size = MAX_MEMBERS;
    }

    action learn() {
        m.is_member = 1;
        m.outcome = OUTCOME_NO_HELLO;
        LEARN
        DROP
    }

    action misplaced() {
        m.is_member = 1;
        m.outcome = OUTCOME_WRONG_PLACE;
        DROP
    }

    // HELLOs with their rank's secret that come from no known binding. While the rank has none, the
    // control plane hears of them, and enters it (rule 24.6). The rank asks again.
    table newcomers {
        key = {
            h.switchml.job: exact @name("job");
            h.switchml.epoch: exact @name("epoch");
            h.switchml.rank: exact @name("rank");
            h.switchml.aux: exact @name("secret");
        }
        actions = { learn; misplaced; NoAction; }
        const default_action = NoAction();
        size = MAX_MEMBERS;
    }

    action refuse(bit<8> reason) {
        m.outcome = reason;
        DROP
    }

    // The reason that the parser found stays.
    action refuse_malformed() { DROP }

    // The reason of a refusal. The most telling entry comes first.
    table refusals {
        key = {
            m.outcome: ternary @name("outcome");
            m.bad_ip_checksum: ternary @name("bad_ip_checksum");
            m.is_hello: ternary @name("is_hello");
            h.switchml.job: ternary @name("job");
            h.switchml.epoch: ternary @name("epoch");
            h.switchml.rank: ternary @name("rank");
            h.switchml.slot: ternary @name("slot");
            h.switchml.flags: ternary @name("flags");
        }
        actions = { refuse; refuse_malformed; }
        default_action = refuse(OUTCOME_UNKNOWN_JOB);
        size = 2 * MAX_MEMBERS;
    }

    // ---- The switch ----

    action forged() { m.outcome = OUTCOME_SPOOFED; }

    // Nobody else may send from the aggregator's address, behind tags or not (rule 5.9).
    table forgeries {
        key = {
            h.ipv4.isValid(): exact @name("is_ipv4");
            h.ipv4.src: exact @name("aggregator");
        }
        actions = { forged; NoAction; }
        const default_action = NoAction();
        size = MAX_JOBS;
    }

    action forward(port_t port) { TO_PORT(port) }
    action flood(group_t group) { FLOOD(group) }
    action nowhere() { DROP }

    // The parser's complaint does not matter for a frame that is not for the role.
    action not_ours() {
        m.outcome = OUTCOME_NOT_OURS;
    }

    table stations {
        key = { h.ethernet.dst: exact @name("mac"); }
        actions = { forward; flood; nowhere; }
        default_action = nowhere();
        size = 4096;
    }
