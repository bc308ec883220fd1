//! The vectors: named sequences of packets, and the expected reactions of every data plane.
//!
//! They are in `tests/vectors`, whose README describes them and their format. [`Vector::parse`]
//! reads one, [`play`] runs it against a [`Subject`], a data plane under test.

mod fields;
mod parse;
mod play;

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::Path;

pub use fields::{difference, headers_len, packet_in};
pub use parse::ParseError;
pub use play::{Played, play, play_all};

/// A named sequence of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vector {
    /// Name of the vector's file, without the extension.
    pub name: String,
    /// What a data plane must offer for this vector.
    pub needs: Offer,
    /// Events in their order.
    pub events: Vec<Event>,
    /// Packets by outcome, over the whole sequence, if each step gets the first of its answers.
    pub counters: Counters,
}

/// Packets by outcome; outcomes that are missing did not occur.
pub type Counters = BTreeMap<String, u64>;

/// The features of a data plane, or the needs of a vector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Whether the specification holds exactly (`guarantee strict`). Otherwise the guarantee is
    /// relaxed, which the files call `fifo`.
    pub strict: bool,
    /// Most lanes in a packet.
    pub lanes: u16,
    /// Most ranks of a job.
    pub ranks: u16,
    /// Job numbers are below this.
    pub jobs: u16,
    /// Slots, for all jobs together.
    pub slots: u32,
    /// Further features that not every data plane has, such as `max`.
    pub features: Vec<String>,
}

impl Offer {
    /// The first of `needs` that is not offered, in words.
    pub fn lacks(&self, needs: &Self) -> Option<String> {
        let feature = needs.features.iter().find(|feature| !self.features.contains(feature));
        if needs.strict && !self.strict {
            Some("the guarantee strict".to_owned())
        } else if needs.lanes > self.lanes {
            Some(format!("{} lanes", needs.lanes))
        } else if needs.ranks > self.ranks {
            Some(format!("{} ranks", needs.ranks))
        } else if needs.jobs > self.jobs {
            Some(format!("{} jobs", needs.jobs))
        } else if needs.slots > self.slots {
            Some(format!("{} slots", needs.slots))
        } else {
            feature.cloned()
        }
    }
}

/// An event of a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The control plane opens a job, whose number is free.
    Open(Job),
    /// The control plane aborts this job.
    Abort(u16),
    /// The control plane ends this job.
    Close(u16),
    /// A slot has been in use for long.
    Age(Age),
    /// Longer than a combiner's patience passes.
    Pause,
    /// A packet comes in.
    Step(Step),
}

/// A job, as the control plane sets it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The job's number.
    pub number: u16,
    /// The job's epoch.
    pub epoch: u32,
    /// The number of the job's slots.
    pub slots: u32,
    /// MAC that workers send to.
    pub mac: [u8; 6],
    /// Address and UDP port that workers send to.
    pub aggregator: SocketAddr,
    /// Address and UDP port of RESULTs for all; none over IPv6.
    pub group: Option<SocketAddrV4>,
    /// The job's key, if its packets have tags.
    pub key: Option<[u8; 16]>,
    /// The parent of a combiner.
    pub parent: Option<Parent>,
    /// The job's ranks, in order; at a combiner the ranks below it.
    pub members: Vec<Member>,
}

/// The address of a combiner's parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The port of the data plane towards the parent.
    pub port: u16,
    /// The parent's MAC.
    pub mac: [u8; 6],
    /// The parent's address and UDP port.
    pub address: SocketAddr,
}

impl Job {
    /// The address that workers send to, and the group, for a subject that does not offer `ipv6`.
    ///
    /// # Panics
    ///
    /// Over IPv6.
    pub fn over_v4(&self) -> (SocketAddrV4, SocketAddrV4) {
        (v4(self.aggregator), self.group.expect("a job over IPv4 has a group"))
    }
}

impl Member {
    /// The rank's address, for a subject that does not offer `ipv6`.
    ///
    /// # Panics
    ///
    /// Over IPv6.
    pub fn over_v4(&self) -> SocketAddrV4 {
        v4(self.address)
    }
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(address) => panic!("{address}: the vector says that it needs ipv6"),
    }
}

/// A rank of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The member's rank.
    pub rank: u16,
    /// The secret of the rank's HELLO.
    pub secret: u32,
    /// The port of the data plane towards the rank.
    pub port: u16,
    /// The rank's MAC.
    pub mac: [u8; 6],
    /// The rank's address and UDP port.
    pub address: SocketAddr,
    /// The number of the rank's queue pair, if it sends by RoCEv2; its port is then RoCEv2's.
    pub queue_pair: Option<u32>,
    /// The rank's key, if its packets have tags.
    pub key: Option<[u8; 16]>,
    /// Whether the rank has yet to say HELLO. All other ranks have, when the job is open.
    pub newcomer: bool,
}

/// A slot that has been in use for long: the rounds in its two sets are later by an even number,
/// and everything else is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// Number of the job.
    pub job: u16,
    /// The job's slot.
    pub slot: u16,
    /// The number added to rounds, modulo 2^32.
    pub by: u32,
}

/// A packet, and the expected reactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The title of the step.
    pub title: String,
    /// Port that the frame comes in through.
    pub port: u16,
    /// The frame, from Ethernet on.
    pub frame: Vec<u8>,
    /// The possible reactions: with the guarantee `strict` it must be the first, otherwise any of
    /// them.
    pub expected: Vec<Expected>,
}

/// A possible reaction to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The answer, if there is one.
    pub answer: Option<Answer>,
    /// Name of the outcome that is counted.
    pub counter: String,
    /// Only a data plane that lacks this feature may react so.
    pub without: Option<String>,
}

/// A frame that a data plane sends, or leaves to other receivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A frame that is not for the aggregator: left to the host, or switched, unchanged.
    Passed(Vec<u8>),
    /// Sent out of this port.
    Port(u16, Vec<u8>),
    /// Sent to all ranks of this job: the same frame at each of their ports, or copies, of which
    /// this is rank 0's.
    Group(u16, Vec<u8>),
    /// Sent to all ranks of this job, of which some have queue pairs.
    Ranks(u16, Copies),
}

/// The frames of a RESULT to all of a job in which some ranks have queue pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// What leaves by each port that has ranks with sockets, if there are any.
    pub group: Option<Vec<u8>>,
    /// What leaves to each rank with a queue pair, by its port.
    pub ranks: BTreeMap<u16, Vec<u8>>,
}

impl Answer {
    /// The frame, or the first of several.
    pub fn frame(&self) -> &[u8] {
        match self {
            Self::Passed(frame) | Self::Port(_, frame) | Self::Group(_, frame) => frame,
            Self::Ranks(_, copies) => {
                let all = copies.group.iter().chain(copies.ranks.values());
                all.map(Vec::as_slice).next().unwrap_or_default()
            }
        }
    }
}

/// How much of an answer's frame a subject shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The whole frame.
    Frame,
    /// Addresses and UDP ports, and the UDP payload: the answer was received by a socket. All other
    /// fields are ignored; so is the destination of an answer to all, since there may be copies.
    Datagram,
}

/// A data plane under test.
pub trait Subject {
    /// What the subject offers: vectors that need more are not played.
    fn offer(&self) -> Offer;

    /// How much of an answer the subject shows.
    fn layer(&self) -> Layer {
        Layer::Frame
    }

    /// Resets the subject to a new state: without jobs, its slots never used. Each vector begins
    /// with this.
    fn reset(&mut self) -> Result<(), String>;

    /// Opens a job: its ranks, except newcomers, are at the addresses in [`Member`].
    fn open(&mut self, job: &Job) -> Result<(), String>;

    /// Aborts a job.
    fn abort(&mut self, job: u16) -> Result<(), String>;

    /// Ends a job.
    fn close(&mut self, job: u16) -> Result<(), String>;

    /// Lets a slot age. If this is not possible, the feature `age` is not offered.
    fn age(&mut self, age: &Age) -> Result<(), String>;

    /// Waits for longer than a combiner's patience. Only called if `combiner` is offered.
    fn pause(&mut self) -> Result<(), String> {
        Err("it has no patience".to_owned())
    }

    /// Sends a frame into a port. Returns the answer.
    fn send(&mut self, port: u16, frame: &[u8]) -> Result<Option<Answer>, String>;

    /// Packets by outcome, in total.
    fn counters(&mut self) -> Result<Counters, String>;
}

/// Reads all vectors of a folder, sorted by name.
///
/// # Panics
///
/// If there is no vector, or one cannot be read.
pub fn read_all(folder: &Path) -> Vec<Vector> {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a directory entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "vector"));
    paths.sort();
    assert!(!paths.is_empty(), "no vectors in {}", folder.display());
    paths
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path)
                .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
            let name = path.file_stem().expect("a name").to_string_lossy();
            Vector::parse(&name, &text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::Offer;

    /// The names are the words that a harness prints.
    #[test]
    fn what_is_lacking_is_named() {
        let offer = Offer {
            strict: true,
            lanes: 64,
            ranks: 32,
            jobs: 16,
            slots: 100,
            features: vec!["max".to_owned()],
        };
        assert_eq!(offer.lacks(&offer), None);
        let more = [
            (Offer { lanes: 96, ..offer.clone() }, "96 lanes"),
            (Offer { ranks: 33, ..offer.clone() }, "33 ranks"),
            (Offer { jobs: 17, ..offer.clone() }, "17 jobs"),
            (Offer { slots: 101, ..offer.clone() }, "101 slots"),
            (Offer { features: vec!["age".to_owned()], ..offer.clone() }, "age"),
        ];
        for (needs, lacking) in more {
            assert_eq!(offer.lacks(&needs).as_deref(), Some(lacking));
        }
    }
}
