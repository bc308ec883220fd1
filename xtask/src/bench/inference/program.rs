//! The programs that write tokens: what a rank runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Way;
use crate::cargo;
use crate::command::succeed;

/// Width, layers and vocabulary of vLLM's model. The vocabulary is as large as that of Llama 2.
const SHAPE: [&str; 3] = ["1024", "8", "32768"];

/// A program that each rank of a model runs. Rank 0 prints a line about each row.
pub struct Program {
    /// The names of models and batches.
    pub rows: &'static [&'static str],
    arguments: Vec<OsString>,
    engine: Engine,
}

enum Engine {
    /// The example, by this interpreter.
    Example(PathBuf),
    Vllm {
        python: PathBuf,
        /// Where it keeps what it compiled.
        cache: PathBuf,
    },
}

/// The example: models cut by hand and by torch. `python` has torch and this package.
pub fn examples(python: &Path) -> Vec<Program> {
    let program = |rows, [width, layers, cut]: [&str; 3]| Program {
        rows,
        arguments: ["--width", width, "--layers", layers, "--cut", cut].map(Into::into).into(),
        engine: Engine::Example(python.to_owned()),
    };
    vec![
        program(&["1024 x 8, all_reduce"], ["1024", "8", "by-hand"]),
        program(&["2048 x 4, all_reduce"], ["2048", "4", "by-hand"]),
        program(&["1024 x 8, DTensor"], ["1024", "8", "dtensor"]),
    ]
}

/// vLLM's ranks, with a model that this makes below the folder. `python` has vLLM.
pub fn vllm(python: &Path, folder: &Path) -> Result<Vec<Program>> {
    let model = folder.join("language-model");
    let mut making = Command::new(python);
    succeed(making.arg(script("tests/language_model.py")).arg(&model).args(SHAPE))
        .context("cannot make a model for vLLM")?;
    let program = |rows, option: Option<&str>| Program {
        rows,
        arguments: [model.clone().into()].into_iter().chain(option.map(Into::into)).collect(),
        engine: Engine::Vllm { python: python.to_owned(), cache: folder.join("vllm-cache") },
    };
    Ok(vec![
        program(&["vLLM, batch 1", "vLLM, batch 8"], None),
        program(&["vLLM compiled, batch 1", "vLLM compiled, batch 8"], Some("--compiled")),
    ])
}

impl Program {
    /// A rank of it, without the variables that say which.
    pub(super) fn command(&self, way: Way) -> Command {
        let mut command = match &self.engine {
            Engine::Example(python) => {
                let mut command = Command::new(python);
                command.arg(script("examples/generate.py")).args(&self.arguments);
                let backend = if way == Way::Gloo { "gloo" } else { "switchml" };
                command.args(["--backend", backend]);
                command
            }
            Engine::Vllm { python, cache } => {
                // Shared memory of its own, as on another machine.
                let mut command = Command::new("unshare");
                command.args(["--mount", "sh", "-c"]);
                command.arg("mount -t tmpfs tmpfs /dev/shm && exec \"$0\" \"$@\"").arg(python);
                command.arg(script("tests/language_model_speed.py")).args(&self.arguments);
                command.env("SWITCHML_VLLM", if way == Way::Gloo { "0" } else { "1" });
                // A graph without sums is not for other ways.
                command.env("VLLM_CACHE_ROOT", cache.join(format!("{way:?}")));
                command.env("LOCAL_RANK", "0");
                command.env("VLLM_ENABLE_V1_MULTIPROCESSING", "0");
                command.env("VLLM_CPU_KVCACHE_SPACE", "1").env("VLLM_NO_USAGE_STATS", "1");
                command.env("VLLM_CPU_OMP_THREADS_BIND", "nobind").env("HF_HUB_OFFLINE", "1");
                command
            }
        };
        if way == Way::Silent {
            command.arg("--silent");
        }
        command
    }
}

/// A script of the Python package.
fn script(path: &str) -> PathBuf {
    cargo::workspace().join("worker-lib/python").join(path)
}
