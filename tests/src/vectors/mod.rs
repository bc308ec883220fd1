//! The vectors: named sequences of packets, and what every data plane must make of them.
//!
//! They lie in `tests/vectors`, whose README says what they are and how they are written.
//! [`Vector::parse`] reads one, [`play`] runs it against a [`Subject`], a data plane in the hands
//! of a test.

mod fields;
mod parse;
mod play;

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, SocketAddrV4},
    path::Path,
};

pub use fields::{difference, headers_len};
pub use parse::ParseError;
pub use play::{Played, play, play_all};

/// A named sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vector {
    /// Name of its file, without the extension.
    pub name: String,
    /// What a data plane must offer.
    pub needs: Offer,
    /// What happens, in this order.
    pub events: Vec<Event>,
    /// Packets by outcome, over the whole sequence, where the first of each step's answers was
    /// given.
    pub counters: Counters,
}

/// Packets by outcome; outcomes that are not named did not occur.
pub type Counters = BTreeMap<String, u64>;

/// What a data plane offers, or a vector needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Whether the specification holds to the letter (`guarantee strict`). Otherwise the guarantee
    /// is relaxed, which the files call `fifo`.
    pub strict: bool,
    /// Most lanes in a packet.
    pub lanes: u16,
    /// Most ranks of a job.
    pub ranks: u16,
    /// Job numbers are below this.
    pub jobs: u16,
    /// Slots, for all jobs together.
    pub slots: u32,
    /// What else not every data plane has, such as `max`.
    pub features: Vec<String>,
}

impl Offer {
    /// What of `needs` this does not offer, in words.
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

/// Something that happens.
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
    /// Its number.
    pub number: u16,
    /// Its epoch.
    pub epoch: u32,
    /// Number of its slots.
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
    /// Its ranks, in order; at a combiner those below it.
    pub members: Vec<Member>,
}

/// Where a combiner's parent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Port of the data plane that it is behind.
    pub port: u16,
    /// Its MAC.
    pub mac: [u8; 6],
    /// Its address and UDP port.
    pub address: SocketAddr,
}

impl Job {
    /// Where workers send to, and the group, for a subject that does not offer `ipv6`.
    ///
    /// # Panics
    ///
    /// Over IPv6.
    pub fn over_v4(&self) -> (SocketAddrV4, SocketAddrV4) {
        (v4(self.aggregator), self.group.expect("a job over IPv4 has a group"))
    }
}

impl Member {
    /// Where the rank lives, for such a subject.
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
    /// Its rank.
    pub rank: u16,
    /// What its HELLO carries.
    pub secret: u32,
    /// Port of the data plane that it is behind.
    pub port: u16,
    /// Its MAC.
    pub mac: [u8; 6],
    /// Its address and UDP port.
    pub address: SocketAddr,
    /// Its key, if its packets have tags.
    pub key: Option<[u8; 16]>,
    /// Whether it has yet to say HELLO. All others have, when the job is open.
    pub newcomer: bool,
}

/// A slot that has been in use for long: its two sets hold later rounds by so many, an even number,
/// and are else as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// Number of the job.
    pub job: u16,
    /// The job's slot.
    pub slot: u16,
    /// What is added to round numbers, modulo 2^32.
    pub by: u32,
}

/// A packet, and what must become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it is about.
    pub title: String,
    /// Port that the frame comes in by.
    pub port: u16,
    /// The frame, from Ethernet on.
    pub frame: Vec<u8>,
    /// What may become of it: the first where the guarantee is `strict`, any of them else.
    pub expected: Vec<Expected>,
}

/// What may become of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The answer, if there is one.
    pub answer: Option<Answer>,
    /// Name of the outcome that is counted.
    pub counter: String,
}

/// A frame that a data plane sends, or leaves to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Not the aggregator's: left to the host, or switched, untouched.
    Passed(Vec<u8>),
    /// Sent out of this port.
    Port(u16, Vec<u8>),
    /// Sent to all ranks of this job: the same frame at each of their ports, or copies, of which
    /// this is rank 0's.
    Group(u16, Vec<u8>),
}

impl Answer {
    /// The frame.
    pub fn frame(&self) -> &[u8] {
        match self {
            Self::Passed(frame) | Self::Port(_, frame) | Self::Group(_, frame) => frame,
        }
    }
}

/// How much of a frame a subject shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// All of it.
    Frame,
    /// Addresses and UDP ports, and what is behind the UDP header: it was received by a socket. All
    /// else of the frames that it gives is not looked at, nor is where an answer to all was
    /// addressed to, which may be copies.
    Datagram,
}

/// A data plane in the hands of a test.
///
/// # Errors
///
/// Of all methods: what went wrong with the subject, in a line. The vector is given up then.
pub trait Subject {
    /// What it offers: vectors that need more are not played.
    fn offer(&self) -> Offer;

    /// How much of an answer it shows.
    fn layer(&self) -> Layer {
        Layer::Frame
    }

    /// As if it were new: without jobs, its slots never used. Each vector begins so.
    fn reset(&mut self) -> Result<(), String>;

    /// Opens a job: its ranks but the newcomers are where [`Member`] says.
    fn open(&mut self, job: &Job) -> Result<(), String>;

    /// Aborts a job.
    fn abort(&mut self, job: u16) -> Result<(), String>;

    /// Ends a job.
    fn close(&mut self, job: u16) -> Result<(), String>;

    /// Lets a slot age. Where this is not possible, the feature `age` is not offered.
    fn age(&mut self, age: &Age) -> Result<(), String>;

    /// Waits for longer than a combiner's patience. Only asked of those that offer `combiner`.
    fn pause(&mut self) -> Result<(), String> {
        Err("it has no patience".to_owned())
    }

    /// Sends a frame into a port, and waits for what becomes of it.
    fn send(&mut self, port: u16, frame: &[u8]) -> Result<Option<Answer>, String>;

    /// Packets by outcome, in total.
    fn counters(&mut self) -> Result<Counters, String>;
}

/// Reads all vectors of a folder, by name.
///
/// # Panics
///
/// If there is none, or one cannot be read.
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

    /// In the words that a harness prints.
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
