//! The paths of a job's shards at one of its aggregators.

use std::io;
use std::net::SocketAddrV4;

use switchml_protocol::capabilities::Capabilities;
use switchml_worker_core::engine::{Config, Identity, Limits};
use switchml_worker_core::hello::OpenPath;
use switchml_worker_core::packet::{ip_packet_len, packet_len};

use crate::control::{Access, Assigned};
use crate::error::Error;
use crate::interface::Interface;
use crate::narrow_path::Narrow;
use crate::open_path::open_path;
use crate::rdma;
use crate::transport::{self, Medium, Transport};
use crate::waker::Wakers;

/// The part of a job at one of its aggregators, with open paths.
pub(crate) struct Opened {
    pub access: Access,
    pub assigned: Assigned,
    /// A path for each shard.
    pub paths: Vec<Path>,
}

impl Opened {
    /// Opens a path for each shard, whose driver has these wakers.
    pub fn at(
        access: Access,
        assigned: Assigned,
        (rank, ranks): (u16, u16),
        medium: Medium<'_>,
        wakers: impl Fn(usize) -> Wakers,
    ) -> Result<Self, Error> {
        let paths = open_paths(&assigned, rank, ranks, medium, wakers)
            .map_err(|error| explained(error, access.peer))?;
        Ok(Self { access, assigned, paths })
    }

    /// The error of paths that carry less than chunks of `lanes` lanes.
    pub fn too_narrow(&self, lanes: u16) -> Error {
        let aggregator = self.assigned.data_address;
        let [passed, needed] = [self.lanes(), lanes]
            .map(|lanes| packet_len(lanes.into()) + self.tag_len())
            .map(|len| ip_packet_len(len, aggregator.is_ipv6()));
        let aggregator = aggregator.into();
        Error::PathMtu { aggregator, passed, needed }.served_by(self.access.peer)
    }

    /// The most lanes that pass on all paths.
    pub fn lanes(&self) -> u16 {
        self.paths.iter().map(|path| path.open.lanes).min().unwrap_or_default()
    }

    /// The RDMA device that packets go by.
    pub fn device(&self) -> Option<&str> {
        self.paths.first()?.transport.device()
    }

    pub fn tag_len(&self) -> usize {
        self.paths.first().map_or(0, |path| path.identity.tag_len())
    }

    pub fn narrow(&self) -> Option<Narrow> {
        let (aggregator, lanes, tag_len) =
            (self.assigned.data_address, self.lanes(), self.tag_len());
        let is_narrow = self.paths.iter().any(|path| path.open.is_narrow);
        is_narrow.then_some(Narrow { aggregator, lanes, tag_len })
    }

    /// Whether the rank needs its own copies of results. It leaves the groups then.
    pub fn needs_copies(&mut self) -> bool {
        let needs_copies = self.paths.iter().any(|path| path.open.hears_group == Some(false));
        if needs_copies {
            for path in &mut self.paths {
                path.group = None;
                path.transport.leave_group();
            }
        }
        needs_copies
    }
}

impl Opened {
    /// Whether all results for all come as copies.
    pub fn gets_copies(&self) -> bool {
        self.paths.iter().all(|path| path.group.is_none())
    }
}

/// A shard's way to its aggregator and back.
pub(crate) struct Path {
    pub identity: Identity,
    /// The secret that the shard's HELLOs carry.
    pub secret: u32,
    /// The multicast group of results for all, if they come by multicast.
    pub group: Option<SocketAddrV4>,
    pub transport: Box<dyn Transport>,
    pub wakers: Wakers,
    pub open: OpenPath,
}

impl Path {
    /// How an engine uses the path for chunks of `lanes` lanes, and for this share of large calls;
    /// and how many packets of such chunks make a superpacket.
    pub fn config(
        &self,
        assigned: &Assigned,
        lanes: u16,
        limits: Limits,
        share: f64,
    ) -> (Config, usize) {
        let packet = packet_len(lanes.into()) + self.identity.tag_len();
        let room = self.transport.receive_room(packet) as u32;
        let config =
            Config::new(self.identity, assigned.slots, lanes, room, limits).for_share(share);
        let capabilities = assigned.capabilities;
        (Config { capabilities, ..config }, self.transport.batch(packet))
    }
}

/// Opens a path for each of the job's shards at an aggregator.
fn open_paths(
    assigned: &Assigned,
    rank: u16,
    ranks: u16,
    medium: Medium<'_>,
    wakers: impl Fn(usize) -> Wakers,
) -> Result<Vec<Path>, Error> {
    let mut paths = Vec::new();
    // Packets that the first path does not carry need not be tried on the others.
    let mut lanes = assigned.max_lanes;
    // Groups need not be tried again either if their packets do not reach this host.
    let mut asks_group = assigned.capabilities.contains(Capabilities::GROUP_HELLOS);
    let by_rdma = matches!(medium, Medium::Rdma);
    if by_rdma {
        rdma::check_taken(assigned).map_err(|unusable| no_rdma()(unusable.into()))?;
    }
    for (shard, (job, group)) in assigned.shards().enumerate() {
        // Rule 37.3.
        let group = group.filter(|_| !by_rdma);
        let identity = Identity { job, epoch: assigned.epoch, rank, ranks, keys: assigned.keys };
        let wakers = wakers(shard);
        let waker = wakers.driving.clone();
        let opened = transport::open(assigned.data_address, group, waker, medium);
        let mut transport = match by_rdma {
            true => opened.map_err(no_rdma())?,
            false => opened.map_err(Error::system("cannot open the data sockets"))?,
        };
        let secret = assigned.hello_secret;
        let open =
            open_path(transport.as_mut(), &identity, secret, lanes, asks_group && group.is_some())?;
        lanes = open.lanes;
        asks_group &= open.hears_group != Some(false);
        paths.push(Path { identity, secret, group, transport, wakers, open });
    }
    Ok(paths)
}

/// Why the paths to an aggregator do not open, which a rank has brought if that is known.
fn explained(error: Error, peer: Option<u16>) -> Error {
    match error {
        Error::DataPathClosed { aggregator, .. }
            if peer.is_none() && Interface::has(aggregator.address.ip()) =>
        {
            Error::OwnHost { aggregator }
        }
        error => error.served_by(peer),
    }
}

/// The error of a rank that wants RDMA.
fn no_rdma() -> impl FnOnce(io::Error) -> Error {
    Error::system("RDMA was asked for and cannot be used")
}
