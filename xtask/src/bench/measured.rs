//! What is measured, and what came out.

use serde::Serialize;

/// A way to do an all-reduce, or a broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Superpackets whole, at tc ingress of the switch's ports: what `--mode auto` takes on these
    /// links.
    Bundle,
    /// As [`Self::Bundle`], in 16 bits for each element.
    Bits16,
    /// As [`Self::Bundle`], in 8 bits for each element.
    Bits8,
    /// A packet at a time, in native XDP.
    Native,
    /// By a process, over UDP sockets.
    Software,
    Gloo,
    OpenMpi,
}

impl Method {
    pub const ALL: [Self; 7] = [
        Self::Bundle,
        Self::Bits16,
        Self::Bits8,
        Self::Native,
        Self::Software,
        Self::Gloo,
        Self::OpenMpi,
    ];
    /// What goals are about.
    pub const OURS: Self = Self::Bundle;

    /// Whether it is this project's.
    pub fn is_ours(self) -> bool {
        !matches!(self, Self::Gloo | Self::OpenMpi)
    }

    /// The method whose ranks do this one's work, too.
    pub fn team(self) -> Self {
        match self {
            Self::Bits16 | Self::Bits8 => Self::Bundle,
            method => method,
        }
    }

    /// Of an element on its way.
    pub fn bits(self) -> u32 {
        match self {
            Self::Bits16 => 16,
            Self::Bits8 => 8,
            _ => 32,
        }
    }

    /// As tables and files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bundle => "bundle",
            Self::Bits16 => "bundle, 16 bits",
            Self::Bits8 => "bundle, 8 bits",
            Self::Native => "native",
            Self::Software => "software",
            Self::Gloo => "Gloo",
            Self::OpenMpi => "Open MPI",
        }
    }
}

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    pub workers: usize,
    /// Of each link and direction in bits per second; none if unshaped.
    pub rate: Option<u64>,
    /// Of the tensor in bytes.
    pub size: usize,
    pub task: Task,
}

/// What a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// An all-reduce.
    Sum,
    /// One of tensors that are mostly zeros.
    SparseSum,
    /// A broadcast of rank 0's tensor.
    Broadcast,
}

impl Task {
    /// One chunk in so many is not zero.
    pub fn dense(self) -> usize {
        if self == Self::SparseSum { 10 } else { 1 }
    }
}

impl Cell {
    /// Timed calls: a quarter of a second of them, more or less, but at least enough for a mean.
    pub fn iters(self) -> usize {
        match self.rate {
            None => ((256 << 20) / self.size).clamp(3, 200),
            Some(_) => ((64 << 20) / self.size).clamp(2, 50),
        }
    }

    /// `16 MiB`, `64 KiB`, and what is done with that if not a sum.
    pub fn size_text(self) -> String {
        let size = match self.size {
            size if size >= 1 << 20 => format!("{} MiB", size >> 20),
            size => format!("{} KiB", size >> 10),
        };
        match self.task {
            Task::Sum => size,
            Task::SparseSum => format!("{size}, {} % zeros", 100 - 100 / self.task.dense()),
            Task::Broadcast => format!("{size}, broadcast"),
        }
    }
}

/// What one repetition gave, for one all-reduce.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// On the slowest rank.
    pub seconds: f64,
    /// Of all processors, whatever ran on them.
    pub cpu_seconds: f64,
    /// Of the ranks' processes, system calls included.
    pub process_seconds: f64,
    /// In softirq, as the timer's interrupt found it.
    pub softirq_seconds: f64,
    /// Chunks that rank 0 sent, in all calls.
    pub chunks: u64,
    /// Chunks that rank 0 sent again, in all calls.
    pub resent: u64,
}

/// One method in one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub cell: Cell,
    pub method: Method,
    /// By repetition.
    pub samples: Vec<Sample>,
    /// Processor time of the switch's program in seconds for one all-reduce; none where no program
    /// is attached. From a repetition of its own, because the kernel's clock costs time, too.
    pub switch_seconds: Option<f64>,
}

impl Measured {
    pub fn of(&self, quantity: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(quantity).collect()
    }
}

/// Everything that was measured.
pub struct Results(pub Vec<Measured>);

impl Results {
    /// Adds a sample; repetitions come in order.
    pub fn add(&mut self, cell: Cell, method: Method, sample: Sample) {
        let known =
            self.0.iter_mut().find(|measured| (measured.cell, measured.method) == (cell, method));
        match known {
            Some(measured) => measured.samples.push(sample),
            None => {
                self.0.push(Measured { cell, method, samples: vec![sample], switch_seconds: None })
            }
        }
    }

    /// Notes the processor time of the switch's program.
    pub fn add_switch(&mut self, cell: Cell, method: Method, seconds: f64) {
        let known =
            self.0.iter_mut().find(|measured| (measured.cell, measured.method) == (cell, method));
        if let Some(measured) = known {
            measured.switch_seconds = Some(seconds);
        }
    }

    pub fn get(&self, cell: Cell, method: Method) -> Option<&Measured> {
        self.0.iter().find(|measured| (measured.cell, measured.method) == (cell, method))
    }

    /// The settings, in the order in which they were measured first.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = Vec::new();
        for measured in &self.0 {
            if !cells.contains(&measured.cell) {
                cells.push(measured.cell);
            }
        }
        cells
    }
}
