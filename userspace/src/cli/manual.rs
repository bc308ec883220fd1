//! The parts of the manual that are not about options: switchml-aggregator(8) and
//! switchml-aggregator.toml(5).

use switchml_cli::pages::{Manual, Section};

/// Manual of the daemon and its commands.
pub const MANUAL: Manual = Manual {
    section: "8",
    sections: &[FILES, SIGNALS, EXIT_STATUS, ENVIRONMENT, EXAMPLES, SEE_ALSO],
    of_file: Some(&[
        ("FILES", &[("/etc/switchml/aggregator.toml", "The file of the packages' service.")]),
        (
            "EXAMPLES",
            &[
                ("iface = [\"eth1\", \"eth2\"]", "Serve workers that are behind these ports."),
                ("control = \"10.0.0.254:48865\"", "Listen on this address only."),
                (
                    "tenant-quota = [\"jobs=8\", \"vision:jobs=16\"]",
                    "Eight jobs for each tenant, sixteen for one of them.",
                ),
            ],
        ),
        ("SEE ALSO", &[("switchml-aggregator(8)", "What each option does.")]),
    ]),
};

const FILES: Section = (
    "FILES",
    &[
        (
            "/etc/switchml/aggregator.toml",
            "Options of the packages' service: see switchml-aggregator.toml(5).",
        ),
        (
            "/sys/fs/bpf/switchml",
            "The data plane, unless --pin-dir names another folder. It outlives a daemon that is \
             killed. The packages' service has it in /sys/fs/bpf/switchml-aggregator/switchml.",
        ),
        (
            "/var/lib/switchml",
            "A place for certificates and keys that the packages' service may write to.",
        ),
    ],
);

const SIGNALS: Section = (
    "SIGNALS",
    &[
        (
            "SIGTERM, SIGINT",
            "Ends all jobs, whose ranks are told, removes the data plane, and ends the daemon.",
        ),
        (
            "SIGHUP",
            "Reads the options again: iface, tenant-quota and the key of token-key take effect, \
             and the log names what needs a restart. If something is wrong, nothing changes.",
        ),
        (
            "SIGKILL",
            "Ends only the daemon: with --data-plane xdp the data plane continues with its jobs, \
             and the next daemon takes it over. `switchml-aggregator detach` removes it instead.",
        ),
    ],
);

const EXIT_STATUS: Section = (
    "EXIT STATUS",
    &[
        ("0", "It was stopped by a signal, or the command did what it should."),
        ("1", "It could not start or continue; standard error has a line that says why."),
        ("2", "Arguments, or files that they name, are wrong."),
    ],
);

const ENVIRONMENT: Section = (
    "ENVIRONMENT",
    &[
        ("RUST_LOG", "How much is logged: error, warn, info (the default), debug or trace."),
        (
            "SWITCHML_TLS_FINGERPRINT, SWITCHML_TLS_CA, SWITCHML_TLS_CERT, SWITCHML_TLS_KEY",
            "How status, jobs and top know a daemon, and what they show it, unless options say \
             otherwise.",
        ),
    ],
);

const EXAMPLES: Section = (
    "EXAMPLES",
    &[
        (
            "switchml-aggregator --iface eth1 --iface eth2",
            "Serves workers that are behind two ports, until a signal.",
        ),
        (
            "switchml-aggregator --data-plane software --control 127.0.0.1:48865",
            "Serves this host only, without any privilege.",
        ),
        (
            "switchml-aggregator --iface eth0 --iface eth1 --parent 10.0.0.254",
            "Adds up for a rack on the way to another aggregator, by the uplink eth0.",
        ),
        (
            "switchml-aggregator --config aggregator.toml --check-config",
            "Says what is wrong with a file of options, before a restart.",
        ),
        ("switchml-aggregator status", "Shows ports, faults, jobs and counters of this host's."),
        (
            "switchml-aggregator token --token-key token.key --tenant vision --jobs 'vision/*' \
             --expires 24h",
            "Makes a token with which ranks may join these jobs for a day.",
        ),
    ],
);

const SEE_ALSO: Section = (
    "SEE ALSO",
    &[
        ("switchml-aggregator.toml(5)", "The file of options."),
        ("switchml-worker(1)", "Benchmark, and check of the path, on workers."),
    ],
);
