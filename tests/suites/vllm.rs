//! vLLM on CPUs, with this project's plugin: a model whose matrices are cut over two hosts writes
//! what one process writes.
//!
//! `SWITCHML_PYTHON_VLLM` names an interpreter that has vLLM and the package; `cargo xtask test`
//! makes its environment. The model is made here, with random weights: nothing is fetched.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use switchml_rack::{Aggregator, Binaries, Process, Rack, RackOptions, can_build_racks, skip};

/// Far longer than vLLM takes to start, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(900);
/// Far longer than a few tokens take.
const SOON: Duration = Duration::from_secs(120);
/// The port of its HTTP server.
const PORT: u16 = 8000;

/// Width, layers and vocabulary of the model. All its vectors and logits are small.
const MODEL: [&str; 3] = ["128", "2", "1024"];
const LAYERS: u64 = 2;
const PROMPT: u64 = 16;
const TOKENS: u64 = 12;

/// Two hosts, and a model.
struct Site {
    python: PathBuf,
    rack: Rack,
    aggregator: Aggregator,
    model: PathBuf,
}

impl Site {
    fn new(name: &str) -> Option<Self> {
        if !can_build_racks(name) {
            return None;
        }
        let python = interpreter(name)?;
        let rack = Rack::new(RackOptions { workers: 2, ..RackOptions::default() }).unwrap();
        let aggregator = Aggregator::in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
        let model = Path::new(env!("CARGO_TARGET_TMPDIR")).join("language-model");
        let mut making = Command::new(&python);
        making.arg(script("language_model.py")).arg(&model).args(MODEL);
        assert!(making.status().unwrap().success(), "the model is made");
        Some(Self { python, rack, aggregator, model })
    }

    /// A process on a host, with the variables that vLLM needs there. It has shared memory of its
    /// own, as on another machine, and its children end with it.
    fn start(&self, host: usize, program: &Path, set: impl FnOnce(&mut Command)) -> Process {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
        command.arg("mount -t tmpfs tmpfs /dev/shm && exec \"$0\" \"$@\"").arg(program);
        set(&mut command);
        command
            .env("SWITCHML_VLLM", "1")
            .env("VLLM_HOST_IP", Rack::worker_address(host).to_string())
            .env("GLOO_SOCKET_IFNAME", "eth0")
            .env("VLLM_CPU_KVCACHE_SPACE", "1")
            .env("VLLM_CPU_OMP_THREADS_BIND", "nobind")
            .env("OMP_NUM_THREADS", "1")
            .env("VLLM_NO_USAGE_STATS", "1")
            .env("HF_HUB_OFFLINE", "1");
        self.rack.worker(host).spawn(&format!("host {host}"), command).unwrap()
    }

    /// A node of `vllm serve`.
    fn node(&self, host: usize) -> Process {
        let address = Rack::worker_address(0).to_string();
        self.start(host, &self.python.with_file_name("vllm"), |command| {
            command.arg("serve").arg(&self.model);
            command.args(["--tensor-parallel-size", "2", "--nnodes", "2", "--master-addr"]);
            command.args([&address, "--node-rank", &host.to_string()]);
            command.args(["--enforce-eager", "--dtype", "float32", "--max-model-len", "256"]);
            command.args(if host == 0 { &[][..] } else { &["--headless"] });
            command.env("SWITCHML_AGGREGATOR", self.aggregator.control());
        })
    }

    /// A rank that writes tokens without a server, and without an aggregator.
    fn rank(&self, rank: usize, ranks: usize) -> Process {
        self.start(rank, &self.python, |command| {
            command.arg(script("language_model_tokens.py")).arg(&self.model);
            command.args([PROMPT, TOKENS].map(|number| number.to_string()));
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("LOCAL_RANK", "0").env("VLLM_ENABLE_V1_MULTIPROCESSING", "0");
            command.env("MASTER_ADDR", Rack::worker_address(0).to_string());
            command.env("MASTER_PORT", "29500");
        })
    }

    /// The tokens that so many ranks write, and those that they write if they do not add up.
    fn written(&self, ranks: usize) -> [Value; 2] {
        let mut started: Vec<_> = (0..ranks).map(|rank| self.rank(rank, ranks)).collect();
        for rank in &mut started {
            rank.wait_success(PATIENCE).unwrap();
        }
        let printed = started[0].stdout();
        let mut lines = printed.lines().filter_map(|line| serde_json::from_str(line).ok());
        [(); 2].map(|()| lines.next().unwrap_or_else(|| panic!("no tokens: {printed}")))
    }

    /// The answer of the HTTP server on the first host.
    fn ask(&self, body: &Value) -> Value {
        let body = body.to_string();
        let address = (Rack::worker_address(0), PORT);
        let answer = self.rack.worker(0).run(move || {
            let mut connection = TcpStream::connect(address).unwrap();
            connection.set_read_timeout(Some(SOON)).unwrap();
            let head = "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json";
            write!(connection, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).unwrap();
            answer
        });
        let (_, json) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    fn completed(&self) -> u64 {
        let mut command = Command::new(&Binaries::for_test().unwrap().aggregator);
        command.args(["status", "--connect", self.aggregator.control()]);
        let text = String::from_utf8(self.rack.switch().output(command).unwrap().stdout).unwrap();
        let number = |line: &str| {
            line.trim().strip_prefix("completed")?.split_whitespace().next()?.parse().ok()
        };
        text.lines().find_map(number).unwrap_or(0)
    }
}

/// The interpreter that has vLLM. If there is none, reports that the test `name` is skipped.
fn interpreter(name: &str) -> Option<PathBuf> {
    let python = std::env::var_os("SWITCHML_PYTHON_VLLM").map(PathBuf::from);
    if python.is_none() {
        let how = "is not set; `cargo xtask test -- -p switchml-rack --test vllm` makes an \
                   environment and sets it, if PyPI answers and the disk has room";
        skip(name, &format!("SWITCHML_PYTHON_VLLM {how}"));
    }
    python
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker-lib/python/tests").join(name)
}

/// `vllm serve` with an aggregator, and ranks without one.
#[test]
fn a_model_over_two_hosts_writes_what_one_process_writes() {
    let name = "a_model_over_two_hosts_writes_what_one_process_writes";
    let Some(site) = Site::new(name) else { return };
    let [wanted, _] = site.written(1);
    assert_eq!(wanted[0].as_array().unwrap().len() as u64, TOKENS, "{wanted}");
    let [peers, silent] = site.written(2);
    assert_eq!(peers, wanted, "ranks serve each other");
    assert_ne!(silent[0], wanted[0], "the sums matter");
    assert_ne!(silent[1], wanted[1], "the sums matter");
    assert_eq!(site.completed(), 0, "the aggregator has nothing to do with it");

    let mut nodes = [0, 1].map(|host| site.node(host));
    nodes[0].wait_for_line("Application startup complete", PATIENCE).unwrap();
    let before = site.completed();
    let prompts: Vec<Vec<u64>> = [2, 40].map(|first| (first..first + PROMPT).collect()).into();
    let answer = site.ask(&json!({
        "model": site.model, "prompt": prompts, "max_tokens": TOKENS, "temperature": 0,
        "ignore_eos": true, "return_token_ids": true,
    }));
    let served = answer["choices"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let served: Vec<_> = served.iter().map(|choice| choice["token_ids"].clone()).collect();
    assert_eq!(Value::from(served), wanted, "by an aggregator");
    // Each of the steps sums up an embedding, and twice in each layer.
    let sums = TOKENS * (2 * LAYERS + 1);
    assert!(site.completed() - before >= sums, "sums were made in the switch");
    for node in &nodes {
        let told = node.stdout() + &node.stderr();
        assert!(
            told.contains("switchml: all_reduce and all_gather between the processes"),
            "{told}"
        );
    }
}

#[test]
fn the_plugin_says_what_it_cannot_use() {
    let Some(python) = interpreter("the_plugin_says_what_it_cannot_use") else { return };
    let output = Command::new(python).arg(script("vllm_plugin.py")).output().unwrap();
    let [printed, told] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success() && printed.contains("all is said"), "{printed}{told}");
}
