// Part of the aggregator's control: packets by RoCEv2. The sender's queue pair stands in the place
// of its UDP port (rule 37.3), and datagrams do not match.

    // Whose queue pair it is (rule 37.2); without entries no messages are taken.
    table queue_pairs {
        key = { h.ipv4.dst: exact @name("aggregator"); }
        actions = { ours; NoAction; }
        const default_action = NoAction();
        size = ENDPOINTS;
    }

    // As `members`.
    table members_by_roce {
        key = {
            m.is_contribution: ternary;
            m.bad_ip_checksum: ternary;
            h.switchml.flags: ternary @name("flags");
            h.switchml.job: ternary @name("job");
            h.switchml.epoch: ternary @name("epoch");
            h.switchml.rank: ternary @name("rank");
            h.switchml.slot: ternary @name("slot");
            h.switchml.round[0:0]: ternary @name("parity");
            m.port: ternary @name("port");
            h.ethernet.src: ternary @name("mac");
            h.ipv4.src: ternary @name("address");
            h.ipv4.dst: ternary @name("aggregator");
            h.transport.sender: ternary @name("queue_pair");
        }
        actions = { admit; turn_away; NoAction; }
        const default_action = NoAction();
        size = 2 * MAX_MEMBERS;
    }

    // As `bindings`.
    table bindings_by_roce {
        key = {
            h.switchml.job: exact @name("job");
            h.switchml.epoch: exact @name("epoch");
            h.switchml.rank: exact @name("rank");
            h.switchml.aux: exact @name("secret");
            m.port: exact @name("port");
            h.ethernet.src: exact @name("mac");
            h.ipv4.src: exact @name("address");
            h.transport.sender: exact @name("queue_pair");
        }
        actions = { greet; NoAction; }
        const default_action = NoAction();
        size = MAX_MEMBERS;
    }
