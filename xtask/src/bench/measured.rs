//! What is measured, and what came out.

use serde::Serialize;
use switchml_rack::{Fabric, Mode, Mpi, Multicast, RackOptions, Topology};

/// Racks, where there are several.
const RACKS: usize = 2;

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
    /// As [`Self::Bundle`], with a copy of each result for each rank.
    Copies,
    /// As [`Self::Bundle`], with tags of packets.
    Tags,
    /// As [`Self::Bundle`], with one port of the switch host at an Ethernet switch.
    OnePort,
    /// The same, where that brings no multicast.
    OnePortCopies,
    /// As [`Self::Native`], with one port.
    NativeOnePort,
    /// Gloo at that Ethernet switch.
    GlooOnePort,
    /// As [`Self::Bundle`], in racks that have a combiner each.
    Tree,
    /// As [`Self::Software`], in racks that have a combiner each.
    SoftwareTree,
    /// As [`Self::Bundle`], in racks that forward: all meet at the root.
    Uncombined,
    GlooInRacks,
    OpenMpiInRacks,
    /// Open MPI's program, with this project's library ahead of it, as [`Self::Bundle`].
    OpenMpiPreloaded,
    Mpich,
    /// MPICH's program in the same way.
    MpichPreloaded,
}

impl Method {
    /// Those in a star, by multicast.
    pub const USUAL: [Self; 8] = [
        Self::Bundle,
        Self::Bits16,
        Self::Bits8,
        Self::Tags,
        Self::Native,
        Self::Software,
        Self::Gloo,
        Self::OpenMpi,
    ];
    /// Those in which networks differ, beside what they are compared with.
    pub const IN_NETWORKS: [Self; 7] = [
        Self::Bundle,
        Self::Copies,
        Self::OnePort,
        Self::OnePortCopies,
        Self::Native,
        Self::NativeOnePort,
        Self::GlooOnePort,
    ];
    /// Those in several racks, beside what they are compared with.
    pub const IN_RACKS: [Self; 7] = [
        Self::Bundle,
        Self::Tree,
        Self::Software,
        Self::SoftwareTree,
        Self::Uncombined,
        Self::GlooInRacks,
        Self::OpenMpiInRacks,
    ];
    /// Those of programs of MPI.
    pub const OF_MPI: [Self; 4] =
        [Self::OpenMpi, Self::OpenMpiPreloaded, Self::Mpich, Self::MpichPreloaded];
    /// What goals are about.
    pub const OURS: Self = Self::Bundle;

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let others = Self::IN_NETWORKS.into_iter().chain(Self::IN_RACKS).chain(Self::OF_MPI);
        Self::USUAL.into_iter().chain(others.filter(|method| !Self::USUAL.contains(method)))
    }

    /// Whether it is this project's.
    pub fn is_ours(self) -> bool {
        self.mpi().is_none() && !self.is_gloo()
    }

    pub fn is_gloo(self) -> bool {
        matches!(self, Self::Gloo | Self::GlooOnePort | Self::GlooInRacks)
    }

    /// What its program is of, if that is an MPI.
    pub fn mpi(self) -> Option<Mpi> {
        match self {
            Self::OpenMpi | Self::OpenMpiInRacks | Self::OpenMpiPreloaded => Some(Mpi::OpenMpi),
            Self::Mpich | Self::MpichPreloaded => Some(Mpi::Mpich),
            _ => None,
        }
    }

    fn is_preloaded(self) -> bool {
        matches!(self, Self::OpenMpiPreloaded | Self::MpichPreloaded)
    }

    /// Whether it has a program at the switch's ports.
    pub fn has_program(self) -> bool {
        self.is_preloaded()
            || self.is_ours() && !matches!(self, Self::Software | Self::SoftwareTree)
    }

    /// Whether it takes frames one by one, in XDP.
    pub fn is_native(self) -> bool {
        matches!(self, Self::Native | Self::NativeOnePort)
    }

    /// In how many racks its ranks are, where each has an uplink.
    pub fn racks(self) -> Option<usize> {
        match self {
            Self::Tree
            | Self::SoftwareTree
            | Self::Uncombined
            | Self::GlooInRacks
            | Self::OpenMpiInRacks => Some(RACKS),
            _ => None,
        }
    }

    /// The rack that its ranks are in, with so many workers.
    ///
    /// Each rack is wired as its methods like it best. With native XDP at the ports, the workers'
    /// offloads are off: it would see checksums that nobody has filled in yet. Everyone else has
    /// them on.
    pub fn rack(self, workers: usize) -> RackOptions {
        let mode = if self.is_native() { Mode::Native } else { Mode::Auto };
        let at_fabric = |multicast| Topology::OneNic(Fabric { multicast, ..Fabric::default() });
        let topology = match self {
            Self::OnePort | Self::NativeOnePort => at_fabric(Multicast::Flooded),
            Self::OnePortCopies | Self::GlooOnePort => at_fabric(Multicast::Blocked),
            _ => Topology::Star,
        };
        RackOptions { workers, mode, topology, ..RackOptions::default() }
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
            Self::Copies => "bundle, copies",
            Self::Tags => "bundle, tags",
            Self::OnePort => "bundle, one port",
            Self::OnePortCopies => "bundle, one port, no multicast",
            Self::NativeOnePort => "native, one port",
            Self::GlooOnePort => "Gloo, one port, no multicast",
            Self::Tree => "bundle, racks with combiners",
            Self::SoftwareTree => "software, racks with combiners",
            Self::Uncombined => "bundle, racks without combiners",
            Self::GlooInRacks => "Gloo in the racks",
            Self::OpenMpiInRacks => "Open MPI in the racks",
            Self::OpenMpiPreloaded => "Open MPI, preloaded",
            Self::Mpich => "MPICH",
            Self::MpichPreloaded => "MPICH, preloaded",
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
    /// Bytes that the uplinks carried up and down, of the one that carried most, for each byte of a
    /// tensor; none where there are no uplinks.
    pub uplink: Option<[f64; 2]>,
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
