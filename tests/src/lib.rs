//! A rack on one machine: a switch and N workers, each in its own network namespace, joined by veth
//! pairs. `cargo xtask run` and the end-to-end tests start the real binaries in it; it is also the
//! shortest description of a deployment.
//!
//! ```text
//!   ┌─ switch ────────────────────────────────────────────────────────────┐
//!   │  switchml-aggregator: gRPC on TCP, contributions on UDP 48864       │
//!   │                                                                     │
//!   │  br0   10.88.0.254/24   02:00:00:00:00:fe                           │
//!   │   │                                                                 │
//!   │   ├──────────────────────┬───────────────── … ─────────┐            │
//!   │  p0                     p1                            pN-1          │
//!   │  02:00:00:00:01:01      02:00:00:00:01:02                           │
//!   │  ▲ native XDP: the      ▲                             ▲             │
//!   │  │ aggregator (the      │                             │             │
//!   │  │ daemon attaches it)  │                             │             │
//!   └──┼──────────────────────┼─────────────────────────────┼─────────────┘
//!      │ veth                 │                             │
//!   ┌──┼─ worker 0 ───────┐ ┌─┼─ worker 1 ───────┐       ┌──┼─ worker N-1 ┐
//!   │  ▼ XDP: pass        │ │ ▼                  │       │  ▼             │
//!   │ eth0 10.88.0.1/24   │ │ eth0 10.88.0.2/24  │   …   │ eth0           │
//!   │ 02:00:00:00:00:01   │ │ 02:00:00:00:00:02  │       │                │
//!   │ switchml-worker     │ │ switchml-worker    │       │                │
//!   └─────────────────────┘ └────────────────────┘       └────────────────┘
//! ```
//!
//! The XDP program passes on frames that are not the aggregator's: the bridge switches traffic
//! between workers and of the control plane, like a host that serves as a switch.
//!
//! The drawing shows [`Mode::Native`]. By default ([`Mode::Auto`]) the aggregator takes
//! superpackets whole, at tc ingress of the ports; `eth0` has all offloads then, and no program,
//! because XDP at either end would split superpackets.
//!
//! With native XDP, a veth silently drops the frames that XDP sends into it unless its other end
//! runs an XDP program too, or has GRO on; and with GRO alone, frames sent by `XDP_TX` wait until
//! something else arrives. This is why each `eth0` has a program that passes frames. Checksum and
//! segmentation offloads are off on `eth0` then, because XDP on the other end would see UDP
//! checksums not filled in yet.
//!
//! With [`Mode::Bmv2`] the switch is bmv2's `simple_switch`, which takes whole frames from its
//! ports and returns them, and there is no bridge. The aggregator's address is at one more port of
//! the switch, with the daemon and its control plane:
//!
//! ```text
//!   ┌─ switch ────────────────────────────────────────────────────────────┐
//!   │  switchml-aggregator ── Thrift ──▶ simple_switch                    │
//!   │   │ gRPC on TCP                     │ p0, p1, … pN-1, host          │
//!   │  agg0 10.88.0.254/24 ── veth ── host                                │
//! ```
//!
//! # One port
//!
//! A [`Topology`] other than the star gives the switch host a single port, `nic0`, at one more
//! namespace, which has the ports `p0`, `p1`, … of the workers: an Ethernet switch (a bridge), or a
//! router that forwards, with or without multicast, NAT and a second router behind it.
//!
//! ```text
//!   worker i                  fabric, or router               switch
//!    eth0 ───────────────── p_i     br0    uplink ──────────── nic0 10.88.0.254/24
//! ```
//!
//! # Links of a chosen rate
//!
//! [`Shaping`] gives all links a rate in each direction, until it is dropped; a rack that is in use
//! can be shaped and unshaped.
//!
//! # Bad links
//!
//! With [`RackOptions::wires`] each link is open in the middle: worker's half and port's half both
//! end in one more namespace, the wires, where an [`Impairment`] joins them. Its tc program sees
//! every frame as it comes out of one half, one at a time, and sends it into the other, or not:
//! seeded loss, duplication, reordering and corruption, for each link and direction, counted. The
//! port's native XDP sees frames one at a time too; for its tc ingress ([`Mode::Auto`]) GRO has
//! merged the remaining ones into superpackets, as behind a NIC.
//!
//! ```text
//!   worker i                    wires                         switch
//!    eth0 ───────────────── w_i ↔ s_i ───────────────────────── p_i
//!                            tc programs
//! ```
//!
//! # Racks of a rack
//!
//! [`Racks`] has several racks of workers, each with a host that routes between its workers and one
//! uplink, and a root host, at which all uplinks end. [`Tree`] has aggregators in the hosts.
//!
//! ```text
//!   worker i        rack r                       wires            root
//!    eth0 ───────── p_i br0 10.88.r+1.254
//!    10.88.r+1.x    uplink 10.88.0.r+1 ───────── w_r ↔ s_r ────── u_r br0 10.88.0.254
//! ```
//!
//! An uplink passes a bridge in the namespace of the wires, where it is shaped and counted; or it
//! is open there, like the links above, for an [`Impairment`].
//!
//! # Nothing is left behind
//!
//! A namespace has no name. It is the namespace of one thread of this process, and lives as long as
//! that thread or a process in it; a process started in it is killed by the kernel when the thread
//! ends (`PR_SET_PDEATHSIG`). So dropping the [`Rack`], a panic, Ctrl-C and even `kill -9` of the
//! owner all remove everything, and any number of racks coexist. Each namespace has its own `/sys`
//! and BPF file system too: `/sys/class/net` shows the rack's interfaces, and pins go away with it.
//!
//! To look inside while it lives, use the line that [`Namespace::enter_command`] returns, for
//! example `nsenter --target 4711 --net --mount ip -d link`. `cargo run -p switchml-rack` holds an
//! empty rack and prints these lines.
//!
//! # Example
//!
//! ```no_run
//! use std::{process::Command, time::Duration};
//! use switchml_rack::{Mode, Rack, RackOptions};
//!
//! # fn main() -> Result<(), switchml_rack::Error> {
//! let rack = Rack::new(RackOptions { workers: 2, mode: Mode::Native, ..RackOptions::default() })?;
//! let mut show = Command::new("ip");
//! show.args(["-d", "link", "show", "eth0"]);
//! let mut show = rack.worker(0).spawn("show", show)?;
//! show.wait_success(Duration::from_secs(5))?;
//! assert!(show.stdout().contains("prog/xdp"));
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

/// Makes tests of functions that take a [`Mode`]: of each of them `native::NAME`, with the
/// aggregator in native XDP, and `bundles::NAME`, with the aggregator at tc ingress. They are
/// skipped where no racks can be built.
#[macro_export]
macro_rules! in_both_modes {
    ($($test:ident),+ $(,)?) => {
        mod native {
            $crate::in_both_modes!(@ Native $($test)+);
        }
        mod bundles {
            $crate::in_both_modes!(@ Auto $($test)+);
        }
    };
    (@ $mode:ident $($test:ident)+) => {
        $(
            #[test]
            fn $test() {
                $crate::needs_racks!();
                super::$test($crate::Mode::$mode);
            }
        )+
    };
}

mod aggregator;
mod binaries;
pub mod daemon;
mod deadline;
mod error;
mod impairment;
mod kernel;
mod link;
mod mpi;
mod multicast_router;
mod namespace;
mod network;
mod output;
pub mod p4_compilers;
pub mod page;
mod privilege;
mod process;
mod public;
mod rack;
mod racks;
pub mod raw_socket;
mod shaping;
mod simple_switch;
mod taps;
pub mod tofino_model;
pub mod tools;
mod torchrun;
mod tree;
pub mod vectors;
mod xdp;

pub use aggregator::{Aggregator, Plane};
pub use binaries::{Binaries, forget_package};
pub use error::Error;
pub use impairment::{Direction, FaultCounts, Faults, Impairment};
pub use link::{AGGREGATOR_ADDRESS, Ip};
pub use mpi::Mpi;
pub use namespace::Namespace;
pub use network::{Fabric, Multicast, Router, Topology};
pub use privilege::{LEFT_OUT, can_build_racks, leave_out, name_of_test, skip};
pub use process::Process;
pub use public::{give_public_addresses, open_ports, public_address};
pub use rack::{Mode, Rack, RackOptions, SWITCHED_ADDRESS};
pub use racks::{Carried, Racks};
pub use rustix::process::Signal;
pub use shaping::Shaping;
pub use simple_switch::SimpleSwitch;
pub use taps::TapRack;
pub use torchrun::{Contributions, Torchrun, Training};
pub use tree::Tree;
pub use xdp::{filter_udp_at_ingress, load_udp_filter};

/// The most workers that a rack takes.
pub const MAX_WORKERS: usize = 16;

/// The smallest MTU that IPv4 allows, in bytes.
pub const MIN_MTU: u32 = 68;

/// The largest MTU with which native XDP attaches to a veth, in bytes, rounded down: a page less
/// the headroom of an XDP frame (256), `skb_shared_info` (320) and the Ethernet header (14), 3506
/// with pages of 4 KiB.
pub const MAX_MTU: u32 = 3500;
