//! environment.md: every environment variable that a part for users reads.

use switchml_cli::markdown::{code, prose, table};
use switchml_control::{Variable, tls};

pub const INTRO: &str = "\
# Environment variables

This page is for users and operators. It lists the environment variables that each part reads. If a
variable is empty, that counts as not set. The variables of the tests are in
[Testing](../testing.md) and in their code.

";

/// A part of the project, and the variables that it reads itself.
struct Part {
    heading: &'static str,
    about: &'static str,
    variables: &'static [Variable],
}

/// The parts. Those in Rust declare their variables where they read them.
const PARTS: [Part; 7] = [
    Part {
        heading: "Worker library",
        about: "The library reads these variables in all programs of ranks: in Rust, C and \
                Python, in `switchml-worker`, and in the plugins for torch, MPI and NCCL. \
                `RANK`, `WORLD_SIZE` and most variables that start with `SWITCHML_` are \
                settings. A setting has one name everywhere: `SWITCHML_JOIN_TIMEOUT` is the \
                option `--join-timeout`, the member `join_timeout` of `switchml_settings` in C, \
                the keyword `join_timeout` of `Communicator` in Python, and the method \
                `join_timeout` of `Builder` in Rust. A value that a program gives overrides the \
                variable. Torch and MPI give each group its own ranks and name, instead of \
                `RANK`, `WORLD_SIZE` and `SWITCHML_JOB`.",
        variables: &switchml_worker::VARIABLES,
    },
    Part {
        heading: "PyTorch",
        about: "The backend for torch also reads these variables.",
        variables: &TORCH,
    },
    Part {
        heading: "vLLM",
        about: "The plugin for vLLM also reads these variables.",
        variables: &VLLM,
    },
    Part {
        heading: "MPI",
        about: "The MPI library reads `SWITCHML_AGGREGATOR` on rank 0, for all ranks. If it is not \
                set there, MPI makes all calls itself.",
        variables: &[],
    },
    Part {
        heading: "NCCL",
        about: "The plugin for NCCL also reads this variable.",
        variables: &NCCL,
    },
    Part {
        heading: "switchml-aggregator",
        about: "The daemon and its commands read this variable.",
        variables: &DAEMON,
    },
    Part {
        heading: "Commands of switchml-aggregator",
        about: "`switchml-aggregator status`, `jobs`, `slots` and `top` read these variables. An \
                option overrides its variable.",
        variables: &tls::VARIABLES,
    },
];

const TORCH: [Variable; 6] = [
    Variable {
        name: "SWITCHML_JOIN_TIMEOUT",
        values: "seconds",
        default: "the group's timeout for the start, and 60 for the join",
        meaning: "How long ranks wait for each other to start, and then again for all to join. \
                  The group's timeout is the most.",
    },
    Variable {
        name: "SWITCHML_FALLBACK",
        values: "gloo",
        default: "an error",
        meaning: "If a rank cannot reach the aggregator, all ranks use Gloo, and log the reason. \
                  All ranks must have the same.",
    },
    Variable {
        name: "GLOO_SOCKET_IFNAME",
        values: "an interface",
        default: "the interface towards the aggregator, or towards the host where ranks meet",
        meaning: "The interface for calls that run on Gloo.",
    },
    Variable {
        name: "TORCH_FR_DUMP_TEMP_FILE",
        values: "the start of a file's name",
        default: "no file",
        meaning: "If a call fails, torch's flight recorder writes the last calls to this file.",
    },
    Variable {
        name: "CXX",
        values: "a command",
        default: "c++",
        meaning: "The compiler for the part of the backend in C++.",
    },
    Variable {
        name: "XDG_CACHE_HOME",
        values: "a folder of this user",
        default: "~/.cache",
        meaning: "The compiled part is kept in its folder switchml.",
    },
];

const VLLM: [Variable; 2] = [
    Variable {
        name: "SWITCHML_VLLM",
        values: "0 or 1",
        default: "0",
        meaning: "Whether vLLM uses SwitchML. All nodes must have the same.",
    },
    Variable {
        name: "VLLM_DISTRIBUTED_USE_SPLIT_GROUP",
        values: "0",
        default: "0",
        meaning: "With 1, vLLM makes groups that only Gloo has, and SwitchML is not used.",
    },
];

const NCCL: [Variable; 1] = [Variable {
    name: "NCCL_SOCKET_IFNAME",
    values: "names of interfaces, as NCCL reads them",
    default: "all interfaces; loopback and Docker's bridges only if there are no others",
    meaning: "The interfaces that the plugin uses.",
}];

const DAEMON: [Variable; 1] = [Variable {
    name: "RUST_LOG",
    values: "error, warn, info, debug or trace; with commas between them, target=level",
    default: "info",
    meaning: "How much is logged.",
}];

/// The parts of the page.
pub fn parts() -> Vec<String> {
    PARTS.iter().map(Part::text).collect()
}

impl Part {
    fn text(&self) -> String {
        let rows = self.variables.iter().map(|variable| {
            let Variable { name, values, default, meaning } = variable;
            [code(name), prose(values), prose(default), prose(meaning)]
        });
        let about = switchml_cli::markdown::wrapped(self.about);
        let variables = table(["variable", "values", "default", "meaning"], rows);
        format!("## {}\n\n{about}\n\n{variables}", self.heading)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use regex::Regex;

    use super::*;
    use crate::workspace;

    /// Folders of the parts for users.
    const SOURCES: [&str; 3] = ["control", "userspace", "worker-lib"];

    /// What reads a variable, in Rust, C and Python, or names one of this project's.
    const READS: &str = r#"(?x)
        ["']( SWITCHML_[A-Z_]+ )["']
        | (?: environ(?:\.get\(|\[) | getenv\( | env::var(?:_os)?\( ) \s* ["']( [A-Z_]+ )["']"#;

    /// The variables that a source reads, without those of its tests.
    fn read(text: &str) -> BTreeSet<String> {
        let (code, _) = text.split_once("#[cfg(test)]").unwrap_or((text, ""));
        let names = Regex::new(READS).expect("an expression");
        let names = names.captures_iter(code).filter_map(|name| name.get(1).or(name.get(2)));
        names.map(|name| name.as_str().to_owned()).collect()
    }

    /// The files of the parts for users, without tests and examples.
    fn sources() -> Vec<String> {
        let mut git = Command::new("git");
        git.arg("ls-files").args(SOURCES).current_dir(workspace());
        let listed = String::from_utf8(git.output().expect("git").stdout).expect("names");
        let is_source = |path: &&str| {
            let extension = Path::new(path).extension().unwrap_or_default();
            let is_code = ["rs", "py", "c", "h"].iter().any(|known| extension == *known);
            is_code && !["/tests/", "/examples/"].iter().any(|other| path.contains(other))
        };
        listed.lines().filter(is_source).map(str::to_owned).collect()
    }

    #[test]
    fn every_variable_that_a_source_reads_is_on_the_page() {
        let page = parts().concat();
        let mut found = BTreeSet::new();
        for path in sources() {
            let text = fs::read_to_string(workspace().join(&path)).expect("a source");
            for name in read(&text) {
                assert!(page.contains(&format!("`{name}`")), "{path} reads {name}");
                found.insert(name);
            }
        }
        assert!(found.len() >= 20, "{found:?}");
    }

    #[test]
    fn reading_is_seen_in_every_language() {
        for (line, name) in [
            (r#"let given = env::var("NCCL_X");"#, "NCCL_X"),
            (r#"std::env::var_os("SHELL")"#, "SHELL"),
            ("os.environ['FOLDER']", "FOLDER"),
            (r#"os.environ.get("A_B", "")"#, "A_B"),
            (r#"getenv("HOME")"#, "HOME"),
            (r#"const NAME: &str = "SWITCHML_NAME";"#, "SWITCHML_NAME"),
        ] {
            assert_eq!(read(line).into_iter().collect::<Vec<_>>(), [name], "{line}");
        }
        for line in ["SWITCHML_SUM16", "a(\"HOME\")", "x\n#[cfg(test)]\nenv::var(\"HOME\")"] {
            assert!(read(line).is_empty(), "{line}");
        }
    }

    /// A list that outlives the code that read it would mislead.
    #[test]
    fn every_variable_on_the_page_is_named_in_a_source() {
        let texts = sources().into_iter().map(|path| fs::read_to_string(workspace().join(path)));
        let texts: String = texts.map(|text| text.expect("a source")).collect();
        for part in PARTS {
            for Variable { name, .. } in part.variables {
                assert!(texts.contains(&format!("\"{name}\"")), "{name}");
            }
        }
    }
}
