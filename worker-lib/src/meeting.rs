//! Ranks meet at a TCP port: rank 0 draws an id for the job, and all learn the addresses of all
//! (rules 22.20 to 22.22 of `docs/spec`). Programs that have a store or messages of their
//! own need none of this.

mod guest;
mod host;
mod message;
mod unique_id;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::control;
use crate::error::Error;
use crate::peers::Peer;
pub(crate) use host::Host;
use message::{Answer, Introduction, Presence, VERSION};
pub use unique_id::UniqueId;

/// How long the rank that listens looks for ranks of another job when all have come. Ranks that
/// wait for it try the place more often.
const SETTLE: Duration = Duration::from_millis(100);
/// How long the rank that listens may take to tell another rank 0 that it is there.
const ANSWER: Duration = Duration::from_secs(5);

/// What must be the same on all ranks that meet.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The job's name, if the user gave one.
    pub job: Option<String>,
    /// Number of aggregators given.
    pub aggregators: usize,
    pub weights: Vec<u32>,
    pub own_hosts: bool,
}

/// A rank that meets the others.
pub(crate) struct Attendant {
    pub rank: u16,
    pub ranks: u16,
    pub settings: Settings,
    /// Its own aggregator, if it brings one.
    pub peer: Option<Peer>,
    pub timeout: Duration,
}

/// What a rank knows after a meeting.
pub(crate) struct Met {
    /// The job's name.
    pub job: String,
    /// All ranks' own aggregators, in the order of ranks, of those that have one.
    pub peers: Vec<Peer>,
    /// The place, on the rank that listens there. It must live as long as the job.
    pub host: Option<Arc<Host>>,
}

impl Attendant {
    /// Meets the others at a place: as rank 0, at this address of its own.
    ///
    /// # Errors
    /// [`Error::Meeting`] if they do not find each other; [`control::Error::Missing`] with the
    /// ranks that did not come in time; [`Error::NoPeer`] for ranks behind NAT.
    pub fn meet(self, place: SocketAddr, own: SocketAddr) -> Result<Met, Error> {
        if self.rank > 0 {
            return self.attend(place);
        }
        let host = Host::at(own).map_err(|error| self.cannot_listen(own, &error))?;
        self.hold(host, SETTLE)
    }

    /// Meets the others where the rank listens that has made the unique id.
    ///
    /// # Errors
    /// Those of [`Self::meet`].
    pub fn meet_by(self, id: &UniqueId) -> Result<Met, Error> {
        let Some(listener) = id.take_listener() else { return self.attend(id.place()) };
        let host = Host::by(listener).map_err(|error| self.cannot_listen(id.place(), &error))?;
        self.hold(host, Duration::ZERO)
    }

    fn hold(&self, host: Arc<Host>, settle: Duration) -> Result<Met, Error> {
        let own = self.introduction(host.place());
        let answer = host.hold(own, self.timeout, settle);
        Ok(Met { host: Some(host), ..self.read(answer)? })
    }

    fn attend(&self, place: SocketAddr) -> Result<Met, Error> {
        let introduction = self.introduction(place);
        self.read(guest::attend(place, &introduction, self.timeout)?)
    }

    /// What this rank says of itself at the place.
    fn introduction(&self, place: SocketAddr) -> Introduction {
        let Settings { job, aggregators, weights, own_hosts } = self.settings.clone();
        Introduction {
            meeting: VERSION,
            rank: self.rank,
            world_size: self.ranks,
            job,
            aggregators,
            weights,
            own_hosts,
            address: self.peer,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            process: std::process::id(),
            user: place.ip().is_loopback().then(|| rustix::process::getuid().as_raw()),
            after: guest::last(place),
        }
    }

    /// Why rank 0 cannot listen; it asks a rank that does.
    fn cannot_listen(&self, place: SocketAddr, error: &std::io::Error) -> Error {
        let advice = "set MASTER_ADDR to an address of rank 0's host, and MASTER_PORT to a port \
                      that is free there, or give the job a name (SWITCHML_JOB)";
        if error.kind() == ErrorKind::AddrInUse
            && let Ok(Answer::Refused(why)) = guest::ask(place, &self.introduction(place), ANSWER)
        {
            return Error::Meeting { why };
        }
        Error::Meeting { why: format!("rank 0 cannot listen at {place}: {error}; {advice}") }
    }

    fn read(&self, answer: Answer) -> Result<Met, Error> {
        let (job, ranks) = match answer {
            Answer::Met { job, ranks, .. } => (job, ranks),
            Answer::Refused(why) => return Err(Error::Meeting { why }),
            Answer::Later => return Err(Error::Meeting { why: "the last job goes on".to_owned() }),
        };
        let all = (0..self.ranks).map(|rank| match ranks.get(usize::from(rank)) {
            Some(presence) => (rank, *presence),
            None => (rank, Presence::Missing),
        });
        let is_missing = |(_, presence): &(u16, Presence)| *presence == Presence::Missing;
        let missing: Vec<u16> = all.clone().filter(is_missing).map(|(rank, _)| rank).collect();
        if !missing.is_empty() {
            let (world_size, waited) = (self.ranks, self.timeout);
            let error =
                control::Error::Missing { job, world_size, waited, ranks: missing, at: None };
            return Err(error.into());
        }
        let peer = |(rank, presence)| match presence {
            Presence::Behind(seen) => Err(Error::NoPeer {
                why: format!(
                    "rank {rank} is behind NAT: it comes from {seen}, which is not its own \
                     address; run containers in the host's network, or give an aggregator"
                ),
            }),
            Presence::Address(peer) => Ok(peer),
            Presence::Missing => Ok(None),
        };
        let peers = all.map(peer).collect::<Result<Vec<_>, _>>()?;
        Ok(Met { job, peers: peers.into_iter().flatten().collect(), host: None })
    }
}

/// A random id, which no other job has.
pub(crate) fn draw_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    /// Longer than any test, which ends earlier if all is well.
    const LONG: Duration = Duration::from_secs(60);

    fn peer(rank: u16) -> Peer {
        format!("127.0.0.1:{}/{rank:032x}", 4000 + rank).parse().unwrap()
    }

    /// A port that was free a moment ago.
    fn place() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn settings() -> Settings {
        Settings { job: None, aggregators: 0, weights: Vec::new(), own_hosts: true }
    }

    fn attendant(rank: u16, timeout: Duration) -> Attendant {
        let peer = Some(peer(rank));
        Attendant { rank, ranks: 4, settings: settings(), peer, timeout }
    }

    fn all_meet(
        place: SocketAddr,
        present: Vec<Attendant>,
    ) -> Vec<Result<(String, Vec<Peer>), Error>> {
        thread::scope(|scope| {
            let meet = |attendant: Attendant| scope.spawn(move || attendant.meet(place, place));
            let ranks: Vec<_> = present.into_iter().map(meet).collect();
            let met: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
            met.into_iter().map(|met| met.map(|met| (met.job, met.peers))).collect()
        })
    }

    #[test]
    fn all_learn_the_aggregators_of_all_and_one_name() {
        let place = place();
        let present = [3, 1, 2, 0].map(|rank| attendant(rank, LONG));
        let told = all_meet(place, present.into());
        let told: Vec<_> = told.into_iter().collect::<Result<_, _>>().unwrap();
        let (job, peers) = &told[0];
        assert!(job.starts_with(&format!("{place}-")), "{job}");
        assert_eq!(*peers, [0, 1, 2, 3].map(peer));
        assert!(told.iter().all(|other| other == &told[0]), "{told:?}");
    }

    #[test]
    fn a_name_that_was_given_is_kept_and_compared() {
        let place = place();
        let named = |rank, job: &str| Attendant {
            ranks: 2,
            settings: Settings { job: Some(job.to_owned()), ..settings() },
            ..attendant(rank, LONG)
        };
        let told = thread::scope(|scope| {
            let host = scope.spawn(|| named(0, "ours").meet(place, place));
            let other = named(1, "theirs").meet(place, place).err().unwrap().to_string();
            let guest = named(1, "ours").meet(place, place).unwrap().job;
            (host.join().unwrap().unwrap().job, guest, other)
        });
        assert_eq!((told.0.as_str(), told.1.as_str()), ("ours", "ours"));
        let start = "the ranks cannot meet: job \"theirs\" meets where job \"ours\" does, which is";
        assert!(told.2.starts_with(start), "{}", told.2);
    }

    #[test]
    fn all_hear_who_is_missing() {
        let waited = Duration::from_secs(2);
        let told = all_meet(place(), vec![attendant(0, waited), attendant(2, waited)]);
        for error in told {
            let Err(Error::Control(control::Error::Missing { ranks, .. })) = error else {
                panic!("{error:?}")
            };
            assert_eq!(ranks, [1, 3]);
        }
    }

    #[test]
    fn a_rank_0_that_is_not_there_is_named() {
        let present = vec![attendant(1, Duration::from_millis(200))];
        let told = all_meet(place(), present).remove(0).unwrap_err().to_string();
        assert!(told.contains("does not answer at 127.0.0.1:"), "{told}");
    }

    #[test]
    fn a_rank_that_comes_twice_ends_the_meeting_for_all() {
        // Rank 2 never comes, so the meeting is open until both have.
        let present = [0, 1, 1].map(|rank| attendant(rank, LONG));
        for told in all_meet(place(), present.into()) {
            let told = told.unwrap_err().to_string();
            assert!(told.starts_with("the ranks cannot meet: rank 1 has come to 127.0.0.1:"));
            assert!(told.contains("two jobs must not meet at one place"), "{told}");
        }
    }

    #[test]
    fn settings_that_differ_end_the_meeting_for_all() {
        let other =
            |settings| vec![attendant(0, LONG), Attendant { settings, ..attendant(1, LONG) }];
        let of_five = vec![attendant(0, LONG), Attendant { ranks: 5, ..attendant(1, LONG) }];
        for (present, theirs, ours) in [
            (of_five, "ranks in all: 5", "ranks in all: 4"),
            (other(Settings { aggregators: 2, ..settings() }), "aggregators: 2", "aggregators: 0"),
            (other(Settings { weights: vec![1], ..settings() }), "weights: [1]", "weights: []"),
            (other(Settings { own_hosts: false, ..settings() }), "hosts: false", "hosts: true"),
        ] {
            for told in all_meet(place(), present) {
                let told = told.unwrap_err().to_string();
                assert!(told.contains("rank 1 (process "), "{told}");
                assert!(told.contains(theirs) && told.contains(ours), "{told}");
                assert!(told.ends_with("give all ranks the same"), "{told}");
            }
        }
    }

    /// Two ranks, as of different processes, because this one knows where it has met.
    fn meet_two(place: SocketAddr) -> (Met, Met) {
        let two = |rank| Attendant { ranks: 2, ..attendant(rank, LONG) };
        thread::scope(|scope| {
            let host = scope.spawn(move || two(0).meet(place, place));
            let guest = two(1).meet(place, place).unwrap();
            (host.join().unwrap().unwrap(), guest)
        })
    }

    #[test]
    fn a_rank_of_a_second_job_ends_the_first_while_it_may_be_in_it() {
        let place = place();
        let (host, _) = meet_two(place);
        let (tell, told) = std::sync::mpsc::channel();
        host.host.as_ref().unwrap().on_mixed_up(move |error| tell.send(error).unwrap());
        let mut stranger = attendant(1, LONG).introduction(place);
        (stranger.world_size, stranger.after) = (2, None);
        let answer = guest::attend(place, &stranger, LONG).unwrap();
        let Answer::Refused(why) = answer else { panic!("{answer:?}") };
        assert_eq!(told.recv_timeout(LONG).unwrap(), Error::Meeting { why });
    }

    #[test]
    fn the_same_ranks_meet_again_also_while_their_first_job_lives() {
        let place = place();
        let (first, _) = meet_two(place);
        let (second, _) = meet_two(place);
        assert_ne!(first.job, second.job);
        drop((first, second));
        // Nobody listens any more.
        TcpListener::bind(place).unwrap();
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = taken.local_addr().unwrap();
        thread::spawn(move || taken.accept().map(drop));
        let told = all_meet(place, vec![attendant(0, LONG)]).remove(0).unwrap_err().to_string();
        assert!(told.contains("MASTER_PORT to a port that is free there"), "{told}");
    }

    #[test]
    fn another_program_at_the_place_is_named() {
        let echo = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = echo.local_addr().unwrap();
        thread::spawn(move || {
            let mut line = String::new();
            let (mut stream, _): (TcpStream, _) = echo.accept().unwrap();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            stream.write_all(line.as_bytes()).unwrap();
        });
        let told = all_meet(place, vec![attendant(1, LONG)]).remove(0).unwrap_err().to_string();
        assert!(told.contains("another program than rank 0 answers at"), "{told}");
    }

    #[test]
    fn ranks_behind_nat_are_named() {
        let mut far = attendant(2, LONG);
        far.ranks = 3;
        let behind = Presence::Behind("192.168.1.7".parse().unwrap());
        let ranks = vec![Presence::Address(Some(peer(0))), Presence::Address(None), behind];
        let met = Answer::Met { id: "1".to_owned(), job: "a".to_owned(), ranks };
        let told = far.read(met).err().unwrap().to_string();
        let expected = "ranks without an aggregator serve each other, but rank 2 is behind NAT: it \
                        comes from 192.168.1.7, which is not its own address; run containers in \
                        the host's network, or give an aggregator";
        assert_eq!(told, expected);
    }
}
