//! The options of the benchmark: those handed to every worker's `switchml-worker bench`.

/// Options of the benchmark, as in nccl-tests.
#[derive(clap::Args)]
pub struct Bench {
    /// Smallest tensor
    #[arg(short = 'b', long, default_value = "8", value_name = "SIZE")]
    minbytes: String,
    /// Largest tensor [default: 64M; 64K on bmv2]
    #[arg(short = 'e', long, value_name = "SIZE")]
    maxbytes: Option<String>,
    /// Each tensor is this many times as large as the one before
    #[arg(short = 'f', long, default_value = "2", value_name = "FACTOR")]
    stepfactor: String,
    /// Timed iterations
    #[arg(short = 'n', long, default_value = "5")]
    iters: String,
    /// Iterations before those
    #[arg(short = 'w', long, default_value = "1")]
    warmup_iters: String,
    /// Element type: f32, f64, f16, bf16 or i32
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Reduction: sum, avg, max or min
    #[arg(long, default_value = "sum")]
    op: String,
    /// Bits of an element that travel in a sum or an average of floats: exact, 16 (half the
    /// packets) or 8 (a quarter)
    #[arg(long, default_value = "exact", value_name = "BITS")]
    precision: String,
    /// Share of the chunks that are zero on all ranks, 0 to 1
    #[arg(long, default_value = "0", value_name = "SHARE")]
    sparsity: String,
    /// Threads of each worker for large tensors, 1 to 8 [default: what suits this machine]
    #[arg(long, value_name = "N")]
    data_threads: Option<String>,
    /// Also write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
}

impl Bench {
    /// The file that results also go to.
    pub fn json(&self) -> Option<&str> {
        self.json.as_deref()
    }

    /// The arguments of `switchml-worker bench`, with this largest tensor unless another was asked
    /// for.
    pub fn arguments<'a>(&'a self, largest: &'a str) -> Vec<&'a str> {
        let mut arguments = vec![
            "--minbytes",
            &self.minbytes,
            "--maxbytes",
            self.maxbytes.as_deref().unwrap_or(largest),
            "--stepfactor",
            &self.stepfactor,
            "--iters",
            &self.iters,
            "--warmup-iters",
            &self.warmup_iters,
            "--dtype",
            &self.dtype,
            "--op",
            &self.op,
            "--precision",
            &self.precision,
            "--sparsity",
            &self.sparsity,
        ];
        arguments.extend(self.data_threads.iter().flat_map(|threads| ["--data-threads", threads]));
        arguments.extend(self.json.iter().flat_map(|file| ["--json", file]));
        arguments
    }
}
