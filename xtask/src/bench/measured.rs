//! The settings and methods that are measured, and the results.

use serde::Serialize;
use switchml_rack::{Fabric, Mode, Mpi, Multicast, RackOptions, Topology};

/// The number of racks, for methods in several.
const RACKS: usize = 2;

/// A way to do an all-reduce, or a broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Whole superpackets, at tc ingress of the switch's ports: the choice of `--mode auto` on
    /// these links.
    Bundle,
    /// Like [`Self::Bundle`], in 16 bits per element.
    Bits16,
    /// Like [`Self::Bundle`], in 8 bits per element.
    Bits8,
    /// A packet at a time, in native XDP.
    Native,
    /// A process that aggregates, over UDP sockets.
    Software,
    Gloo,
    OpenMpi,
    /// Like [`Self::Bundle`], with a copy of each result for each rank.
    Copies,
    /// Like [`Self::Bundle`], with tags of packets.
    Tags,
    /// Like [`Self::Bundle`], with one port of the switch host at an Ethernet switch.
    OnePort,
    /// Like [`Self::OnePort`], without multicast.
    OnePortCopies,
    /// Like [`Self::Native`], with one port.
    NativeOnePort,
    /// Gloo at that Ethernet switch.
    GlooOnePort,
    /// Like [`Self::Bundle`], in racks with a combiner each.
    Tree,
    /// Like [`Self::Software`], in racks with a combiner each.
    SoftwareTree,
    /// Like [`Self::Bundle`], in racks that only forward: all packets meet at the root.
    Uncombined,
    GlooInRacks,
    OpenMpiInRacks,
    /// Open MPI's program, with this project's library ahead of it, like [`Self::Bundle`].
    OpenMpiPreloaded,
    Mpich,
    /// MPICH's program, with this project's library ahead of it, like [`Self::Bundle`].
    MpichPreloaded,
}

impl Method {
    /// The methods in a star, with multicast.
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
    /// The methods for comparing networks, with their baselines.
    pub const IN_NETWORKS: [Self; 7] = [
        Self::Bundle,
        Self::Copies,
        Self::OnePort,
        Self::OnePortCopies,
        Self::Native,
        Self::NativeOnePort,
        Self::GlooOnePort,
    ];
    /// The methods in several racks, with their baselines.
    pub const IN_RACKS: [Self; 7] = [
        Self::Bundle,
        Self::Tree,
        Self::Software,
        Self::SoftwareTree,
        Self::Uncombined,
        Self::GlooInRacks,
        Self::OpenMpiInRacks,
    ];
    /// The methods that run programs of MPI.
    pub const OF_MPI: [Self; 4] =
        [Self::OpenMpi, Self::OpenMpiPreloaded, Self::Mpich, Self::MpichPreloaded];
    /// The method that the goals are about.
    pub const OURS: Self = Self::Bundle;

    /// All methods.
    pub fn all() -> impl Iterator<Item = Self> {
        let others = Self::IN_NETWORKS.into_iter().chain(Self::IN_RACKS).chain(Self::OF_MPI);
        Self::USUAL.into_iter().chain(others.filter(|method| !Self::USUAL.contains(method)))
    }

    /// Whether the method is this project's.
    pub fn is_ours(self) -> bool {
        self.row().library == Library::Ours
    }

    pub fn is_gloo(self) -> bool {
        self.row().library == Library::Gloo
    }

    /// The MPI that the method's program uses, if any.
    pub fn mpi(self) -> Option<Mpi> {
        match self.row().library {
            Library::Mpi(mpi) => Some(mpi),
            Library::Ours | Library::Gloo => None,
        }
    }

    /// What adds up.
    pub fn serving(self) -> Serving {
        self.row().serving
    }

    /// Whether the method attaches a program to the switch's ports.
    pub fn has_program(self) -> bool {
        !matches!(self.serving(), Serving::Nothing | Serving::Software)
    }

    /// Whether the method processes frames one by one, in XDP.
    pub fn is_native(self) -> bool {
        self.serving() == Serving::Native
    }

    /// The number of racks, each with an uplink, if the ranks are in several.
    pub fn racks(self) -> Option<usize> {
        (self.row().network == Network::Racks).then_some(RACKS)
    }

    /// The options of the method's rack with `workers` workers.
    ///
    /// Each rack has the wiring that is best for its methods. With native XDP at the ports, the
    /// workers' offloads are off, because XDP would see checksums that are not filled in yet. For
    /// all other methods they are on.
    pub fn rack(self, workers: usize) -> RackOptions {
        let mode = if self.is_native() { Mode::Native } else { Mode::Auto };
        let topology = match self.row().network {
            Network::OnePort(multicast) => {
                Topology::OneNic(Fabric { multicast, ..Fabric::default() })
            }
            Network::Star | Network::Racks => Topology::Star,
        };
        RackOptions { workers, mode, topology, ..RackOptions::default() }
    }

    /// The method whose ranks do this one's work, too.
    pub fn team(self) -> Self {
        if self.bits() < 32 { Self::Bundle } else { self }
    }

    /// Bits per element in packets.
    pub fn bits(self) -> u32 {
        match self {
            Self::Bits16 => 16,
            Self::Bits8 => 8,
            _ => 32,
        }
    }

    /// The method's name in tables and files.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    fn row(self) -> Row {
        use Library::{Gloo, Mpi, Ours};
        use Network::{OnePort, Racks, Star};
        use Serving::{Bundles, Forwarding, Native, Nothing, Software};
        use switchml_rack::Mpi::{Mpich, OpenMpi};
        const MULTICAST: Network = OnePort(Multicast::Flooded);
        const NO_MULTICAST: Network = OnePort(Multicast::Blocked);
        const COPIES: Serving = Bundles(&["--fanout", "unicast"]);
        const TAGS: Serving = Bundles(&["--tls-self-signed", "--packet-tags"]);
        let row = |name, library, serving, network| Row { name, library, serving, network };
        match self {
            Self::Bundle => row("bundle", Ours, Bundles(&[]), Star),
            Self::Bits16 => row("bundle, 16 bits", Ours, Bundles(&[]), Star),
            Self::Bits8 => row("bundle, 8 bits", Ours, Bundles(&[]), Star),
            Self::Native => row("native", Ours, Native, Star),
            Self::Software => row("software", Ours, Software, Star),
            Self::Gloo => row("Gloo", Gloo, Nothing, Star),
            Self::OpenMpi => row("Open MPI", Mpi(OpenMpi), Nothing, Star),
            Self::Copies => row("bundle, copies", Ours, COPIES, Star),
            Self::Tags => row("bundle, tags", Ours, TAGS, Star),
            Self::OnePort => row("bundle, one port", Ours, Bundles(&[]), MULTICAST),
            Self::OnePortCopies => {
                row("bundle, one port, no multicast", Ours, Bundles(&[]), NO_MULTICAST)
            }
            Self::NativeOnePort => row("native, one port", Ours, Native, MULTICAST),
            Self::GlooOnePort => row("Gloo, one port, no multicast", Gloo, Nothing, NO_MULTICAST),
            Self::Tree => row("bundle, racks with combiners", Ours, Bundles(&[]), Racks),
            Self::SoftwareTree => row("software, racks with combiners", Ours, Software, Racks),
            Self::Uncombined => row("bundle, racks without combiners", Ours, Forwarding, Racks),
            Self::GlooInRacks => row("Gloo in the racks", Gloo, Nothing, Racks),
            Self::OpenMpiInRacks => row("Open MPI in the racks", Mpi(OpenMpi), Nothing, Racks),
            Self::OpenMpiPreloaded => row("Open MPI, preloaded", Mpi(OpenMpi), Bundles(&[]), Star),
            Self::Mpich => row("MPICH", Mpi(Mpich), Nothing, Star),
            Self::MpichPreloaded => row("MPICH, preloaded", Mpi(Mpich), Bundles(&[]), Star),
        }
    }
}

/// What a method is.
struct Row {
    name: &'static str,
    library: Library,
    serving: Serving,
    network: Network,
}

/// Whose ranks there are. Those of an MPI that something serves have this project's library ahead.
#[derive(PartialEq)]
enum Library {
    Ours,
    Gloo,
    Mpi(Mpi),
}

/// What adds up.
#[derive(Clone, Copy, PartialEq)]
pub enum Serving {
    Nothing,
    /// The aggregator at tc ingress, with these options; in several racks with combiners.
    Bundles(&'static [&'static str]),
    /// The same, at the root alone of several racks.
    Forwarding,
    /// The aggregator in native XDP.
    Native,
    /// The aggregator in software; in several racks with combiners.
    Software,
}

#[derive(PartialEq)]
enum Network {
    Star,
    OnePort(Multicast),
    Racks,
}

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    pub workers: usize,
    /// Bits per second of each link and direction; `None` if unshaped.
    pub rate: Option<u64>,
    /// Bytes of the tensor.
    pub size: usize,
    pub task: Task,
}

/// The kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// An all-reduce.
    Sum,
    /// An all-reduce of tensors that are mostly zeros.
    SparseSum,
    /// A broadcast of rank 0's tensor.
    Broadcast,
}

impl Task {
    /// One chunk in this many is not zero.
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

    /// The size and the kind of call, such as `16 MiB` or `64 KiB, broadcast`.
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

/// The result of one repetition, per all-reduce.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// Seconds on the slowest rank.
    pub seconds: f64,
    /// Seconds of all processors, for everything that ran on them.
    pub cpu_seconds: f64,
    /// Seconds of the ranks' processes, system calls included.
    pub process_seconds: f64,
    /// Seconds in softirq, as sampled by the timer's interrupt.
    pub softirq_seconds: f64,
    /// Chunks that rank 0 sent, in all calls.
    pub chunks: u64,
    /// Chunks that rank 0 sent again, in all calls.
    pub resent: u64,
    /// Bytes carried up and down by the busiest uplink, per byte of tensors; `None` without
    /// uplinks.
    pub uplink: Option<[f64; 2]>,
}

/// One method in one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub cell: Cell,
    pub method: Method,
    /// Samples by repetition.
    pub samples: Vec<Sample>,
    /// Processor time of the switch's program in seconds per all-reduce; `None` if no program is
    /// attached. It comes from a separate repetition, because the kernel's clock costs time, too.
    pub switch_seconds: Option<f64>,
}

impl Measured {
    pub fn of(&self, quantity: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(quantity).collect()
    }
}

/// All results.
pub struct Results(pub Vec<Measured>);

impl Results {
    /// Adds a sample; repetitions come in order.
    pub fn add(&mut self, cell: Cell, method: Method, sample: Sample) {
        match self.find(cell, method) {
            Some(measured) => measured.samples.push(sample),
            None => {
                self.0.push(Measured { cell, method, samples: vec![sample], switch_seconds: None });
            }
        }
    }

    /// Notes the processor time of the switch's program.
    pub fn add_switch(&mut self, cell: Cell, method: Method, seconds: f64) {
        if let Some(measured) = self.find(cell, method) {
            measured.switch_seconds = Some(seconds);
        }
    }

    fn find(&mut self, cell: Cell, method: Method) -> Option<&mut Measured> {
        self.0.iter_mut().find(|measured| (measured.cell, measured.method) == (cell, method))
    }

    pub fn get(&self, cell: Cell, method: Method) -> Option<&Measured> {
        self.0.iter().find(|measured| (measured.cell, measured.method) == (cell, method))
    }

    /// The settings, in the order in which they were first measured.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = self.0.iter().map(|measured| measured.cell).collect();
        // Methods of a setting come one after the other in its first repetition.
        cells.dedup();
        cells
    }
}
