//! Converts the control plane's messages for a session.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use switchml_control::{self as control, JoinEvent, MemberId, join_event::Event};
use switchml_protocol::capabilities::Capabilities;
use switchml_worker_core::engine::Keys;
use switchml_worker_core::session::{Answer, MadeCall, News};
use switchml_worker_core::stripes::Links;
use tonic::{Code, Status};

use super::connection::failure_of;

/// What a job gives to a rank at one of its aggregators (rule 22.2). The same for all ranks, except
/// the secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Number of the job, for the header.
    pub job: u16,
    /// The session's epoch, for the header.
    pub epoch: u32,
    /// Number of slots S: the header's slot is 0..S-1.
    pub slots: u16,
    /// The address that contributions go to and every answer comes from.
    pub data_address: SocketAddr,
    /// Multicast group of a RESULT for all; `None` when each rank gets a copy of its own.
    pub group: Option<SocketAddrV4>,
    /// The `aux` of this rank's HELLO.
    pub hello_secret: u32,
    /// The keys of the tags of the job's packets.
    pub keys: Keys,
    /// Proves to the control plane that a request is this rank's.
    pub control_secret: u64,
    /// Most lanes that the data plane takes in a packet.
    pub max_lanes: u16,
    /// Whether the data plane outlives the aggregator's daemon: a job that has started continues
    /// when the connection breaks, and the rank connects again.
    pub durable: bool,
    /// The data plane's capabilities.
    pub capabilities: Capabilities,
    /// The aggregator, among those of the job.
    pub aggregator: u64,
    /// What the job's ranks name it with at another aggregator (rule 36.9).
    pub move_secret: u64,
    /// How fast it is reached.
    pub links: Links,
    /// Job number and group of each shard after the first; the first has the ones above. All shards
    /// have the same number of slots.
    pub further_shards: Vec<(u16, Option<SocketAddrV4>)>,
}

impl Assigned {
    /// How rank `rank`, which this was sent to, refers to itself.
    pub(crate) fn member(&self, rank: u32) -> MemberId {
        let Self { job, epoch, control_secret: secret, .. } = *self;
        MemberId { job: job.into(), epoch, rank, secret }
    }

    /// Fails with the field that makes no sense, and what is in it; never with the rest, which has
    /// secrets.
    pub(super) fn from_message(message: &control::Assigned) -> Result<Self, String> {
        let narrow = |number: u32, field| u16::try_from(number).map_err(|_| wrong(field, number));
        let group = |address: &str, port| {
            if address.is_empty() {
                return Ok::<_, String>(None);
            }
            let address = address.parse().map_err(|_| wrong("group_address", address))?;
            Ok(Some(SocketAddrV4::new(address, narrow(port, "group_port")?)))
        };
        let further = message.further_shards.iter();
        let further = further.map(|shard| {
            Ok((narrow(shard.job, "job")?, group(&shard.group_address, shard.group_port)?))
        });
        let address = &message.data_address;
        let ip: IpAddr = address.parse().map_err(|_| wrong("data_address", address))?;
        let slots = narrow(message.slots, "slots")?;
        let (member_key, job_key) = (&message.member_key, &message.job_key);
        let keys = Keys::from_bytes(member_key, job_key).ok_or_else(|| {
            format!("wrong keys: of {} and {} bytes", member_key.len(), job_key.len())
        })?;
        Ok(Self {
            job: narrow(message.job, "job")?,
            epoch: message.epoch,
            slots: Some(slots).filter(|slots| *slots > 0).ok_or_else(|| wrong("slots", slots))?,
            data_address: SocketAddr::new(ip, narrow(message.data_port, "data_port")?),
            group: group(&message.group_address, message.group_port)?,
            hello_secret: message.hello_secret,
            keys,
            control_secret: message.control_secret,
            max_lanes: narrow(message.max_lanes, "max_lanes")?,
            durable: message.durable,
            capabilities: Capabilities::from_bits_truncate(message.capabilities),
            aggregator: message.aggregator,
            move_secret: message.move_secret,
            links: Links {
                hosts: message.hosts,
                own: message.link_speed,
                interfaces: message.links,
                slowest: message.slowest_link,
                is_on_ranks_host: message.is_on_ranks_host,
                has_combiners: message.has_combiners,
            },
            further_shards: further.collect::<Result<_, String>>()?,
        })
    }

    /// Job number and group of each shard.
    pub fn shards(&self) -> impl Iterator<Item = (u16, Option<SocketAddrV4>)> {
        std::iter::once((self.job, self.group)).chain(self.further_shards.iter().copied())
    }
}

fn wrong(field: &str, value: impl Debug) -> String {
    format!("a wrong {field}: {value:?}")
}

/// The news in an event of the stream, except for [`Assigned`], of which a session needs less.
pub(super) fn news(event: JoinEvent) -> News {
    match event.event {
        Some(Event::Waiting(waiting)) => News::Waiting(ranks(&waiting.missing_ranks)),
        Some(Event::Assigned(assigned)) => News::Assigned { durable: assigned.durable },
        Some(Event::Started(started)) => match u16::try_from(started.lanes) {
            Ok(lanes) => News::Started { lanes },
            Err(_) => News::Nonsense(format!("{started:?}")),
        },
        Some(Event::Aborted(control::Aborted { reason, ranks: named, stops: true, .. })) => {
            News::Stops { reason, ranks: ranks(&named) }
        }
        Some(Event::Aborted(control::Aborted { reason, ranks: at_fault, calls, .. })) => {
            let calls = calls.into_iter().map(|made| MadeCall {
                ranks: ranks(&made.ranks),
                number: made.number,
                call: made.call,
            });
            News::Aborted { reason, ranks: ranks(&at_fault), calls: calls.collect() }
        }
        Some(Event::Left(left)) => match u16::try_from(left.rank) {
            Ok(rank) => News::Left(rank),
            Err(_) => News::Nonsense(format!("{left:?}")),
        },
        Some(Event::CallsWanted(_)) => News::CallsWanted,
        None => News::Nonsense("an event of an unknown kind".to_owned()),
    }
}

/// The ranks that are not ready, of the job with this number. Waiting jobs have no number, and
/// report 0.
pub(super) fn unready(jobs: Vec<control::JobStatus>, job: u32) -> Vec<u16> {
    let ours = jobs.into_iter().filter(|entry| entry.shards.contains(&job));
    let unready = ours.flat_map(|entry| entry.members).filter(|member| !member.ready);
    ranks(&unready.map(|member| member.rank).collect::<Vec<_>>())
}

/// The answer for a request that failed.
pub(super) fn refusal(status: &Status) -> Answer {
    match (failure_of(status), status.code()) {
        (Some(why), _) => Answer::Lost(why),
        (None, Code::NotFound) => Answer::Unknown(status.message().to_owned()),
        // Rule 27.20: a combiner has lost its parent.
        (None, Code::Unavailable) => Answer::Lost(status.message().to_owned()),
        (None, _) => Answer::Refused(status.message().to_owned()),
    }
}

/// Ranks fit u16: the header's field is one.
fn ranks(numbers: &[u32]) -> Vec<u16> {
    let mut ranks: Vec<u16> = numbers.iter().filter_map(|&rank| u16::try_from(rank).ok()).collect();
    ranks.sort_unstable();
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_either_kind_of_ip_and_groups_of_ipv4() {
        let message = |data: &str, group: &str| control::Assigned {
            slots: 1,
            data_address: data.to_owned(),
            data_port: 48864,
            group_address: group.to_owned(),
            group_port: 48866,
            ..Default::default()
        };
        let read = |data, group| Assigned::from_message(&message(data, group));
        let assigned = read("10.0.0.1", "239.255.0.0").unwrap();
        assert_eq!(assigned.data_address, "10.0.0.1:48864".parse().unwrap());
        assert_eq!(assigned.group, Some("239.255.0.0:48866".parse().unwrap()));
        let assigned = read("fd00::1", "").unwrap();
        assert_eq!(assigned.data_address, "[fd00::1]:48864".parse().unwrap());
        assert_eq!(assigned.group, None);
        assert_eq!(read("host", "").unwrap_err(), "a wrong data_address: \"host\"");
        assert_eq!(read("fd00::1", "ff05::1").unwrap_err(), "a wrong group_address: \"ff05::1\"");
    }

    /// Errors are printed, and get into logs and bug reports.
    #[test]
    fn what_makes_no_sense_is_named_and_no_secret() {
        let right = control::Assigned {
            slots: 1,
            data_address: "10.0.0.1".to_owned(),
            hello_secret: 0x5EC2_E7A1,
            control_secret: 0x5EC2_E7A2_5EC2_E7A3,
            member_key: vec![0x5E; 16],
            job_key: vec![0x5F; 16],
            ..Default::default()
        };
        type Change = fn(&mut control::Assigned);
        let changes: [(Change, &str); 5] = [
            (|message| message.slots = 0, "a wrong slots: 0"),
            (|message| message.job = 1 << 16, "a wrong job: 65536"),
            (|message| message.max_lanes = u32::MAX, "a wrong max_lanes: 4294967295"),
            (|message| message.data_address.clear(), "a wrong data_address: \"\""),
            (|message| message.job_key.truncate(3), "wrong keys: of 16 and 3 bytes"),
        ];
        for (change, expected) in changes {
            let mut message = right.clone();
            change(&mut message);
            assert_eq!(Assigned::from_message(&message).unwrap_err(), expected);
        }
        assert!(Assigned::from_message(&right).is_ok());
    }

    #[test]
    fn jobs_that_wait_have_no_number() {
        let members = |ready: &[bool]| {
            let member =
                |(rank, ready)| control::MemberStatus { rank, ready, ..Default::default() };
            (0..).zip(ready.iter().copied()).map(member).collect()
        };
        let waiting = control::JobStatus { members: members(&[false; 3]), ..Default::default() };
        let ours = control::JobStatus {
            shards: vec![0, 255],
            members: members(&[true, false]),
            ..Default::default()
        };
        let other = control::JobStatus {
            job: 1,
            shards: vec![1],
            members: members(&[false; 2]),
            ..Default::default()
        };
        assert_eq!(unready(vec![waiting, ours, other], 0), [1]);
    }
}
