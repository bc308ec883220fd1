// Packets that are lost on purpose, for tests (rule 24.15). The table is empty unless the daemon
// was started with --drop-rate.

control Losses(inout metadata_t m, in bit<16> draw) {
    action lose() { m.lost = 1; }

    // A packet is lost if its draw is among these numbers.
    table losses {
        key = { draw: ternary @name("draw"); }
        actions = { lose; NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    apply { losses.apply(); }
}
