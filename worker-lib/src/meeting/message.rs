//! What ranks say to each other at a meeting: rules 22.20 and 22.21 of `docs/spec`.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::peers::Peer;

/// Version of these messages.
pub const VERSION: u32 = 3;
/// Longest line, in bytes: 1024 addresses.
const LONGEST: u64 = 256 << 10;

/// What a rank says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// [`VERSION`].
    pub meeting: u32,
    pub rank: u16,
    pub world_size: u16,
    /// The job's name, if the user gave one.
    pub job: Option<String>,
    /// Number of aggregators given.
    pub aggregators: usize,
    pub weights: Vec<u32>,
    pub own_hosts: bool,
    /// Its own aggregator, if it brings one.
    pub address: Option<Peer>,
    /// Name of its host.
    pub host: String,
    pub process: u32,
    /// The user that it runs as, if the place is reached on this host alone.
    pub user: Option<u32>,
    /// The id of this process's last meeting at this place.
    pub after: Option<String>,
}

/// The answer to an [`Introduction`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// All have come, or time is over.
    Met { id: String, job: String, ranks: Vec<Presence> },
    /// This rank does not belong here, or the meeting has failed for all.
    Refused(String),
    /// The next meeting has not begun: ask again.
    Later,
}

/// What became of a rank at a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Presence {
    Address(Option<Peer>),
    /// Its address is not the one that it came from, which is this.
    Behind(IpAddr),
    Missing,
}

impl Introduction {
    /// The process, for people.
    pub fn who(&self) -> String {
        format!("process {} on {}", self.process, self.host)
    }

    /// Why this rank is of another job than the one that listens; `None` if it may be of the same.
    pub fn is_foreign(&self, listens: &Self) -> Option<String> {
        let named = |job: &Option<String>| match job {
            Some(job) => format!("job {job:?}"),
            None => "a job without a name".to_owned(),
        };
        if self.meeting != listens.meeting {
            return Some(format!(
                "rank {} speaks version {} of the meeting, and {} speaks {}",
                self.rank,
                self.meeting,
                listens.who(),
                listens.meeting
            ));
        }
        if self.job != listens.job {
            let (theirs, ours, who) = (named(&self.job), named(&listens.job), listens.who());
            return Some(format!(
                "{theirs} meets where {ours} does, which is {who}; give each job a MASTER_PORT of \
                 its own"
            ));
        }
        let users = self.user.zip(listens.user).filter(|(theirs, ours)| theirs != ours);
        users.map(|(theirs, ours)| {
            let who = listens.who();
            format!("a job of user {theirs} meets where one of user {ours} does, which is {who}")
        })
    }

    /// The first setting that differs from that of the rank that listens, and must not.
    pub fn difference(&self, listens: &Self) -> Option<String> {
        let settings = |one: &Self| {
            [
                ("ranks in all", one.world_size.to_string()),
                ("aggregators", one.aggregators.to_string()),
                ("weights", format!("{:?}", one.weights)),
                ("own hosts", one.own_hosts.to_string()),
            ]
        };
        let both = settings(self).into_iter().zip(settings(listens));
        let mut differing = both.filter(|(theirs, ours)| theirs != ours);
        differing.next().map(|((name, theirs), (_, ours))| {
            format!(
                "rank {} ({}) has {name}: {theirs}, and rank {} ({}) has {name}: {ours}; give all \
                 ranks the same",
                self.rank,
                self.who(),
                listens.rank,
                listens.who()
            )
        })
    }
}

/// Sends a message, which is a line.
///
/// # Errors
/// Those of the stream.
pub fn send(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives a message.
///
/// # Errors
/// Those of the stream; `UnexpectedEof` if it ends within the line, and `InvalidData` for another
/// line.
pub fn receive<M: DeserializeOwned>(stream: &TcpStream) -> io::Result<M> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}
