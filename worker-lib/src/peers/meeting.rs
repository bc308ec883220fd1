//! Rule 36.6: ranks exchange addresses at the host of one of them, over TCP. Each says a line, and
//! gets one when all have. Frameworks that have a store of their own need none of this.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use crate::control;
use crate::error::Error;

/// What a rank's line begins with; the number is the version.
const HEAD: &str = "switchml-meeting-1";
/// Longest line, in bytes: 1024 addresses.
const LONGEST: u64 = 64 << 10;
/// How long a connection may take to say its line.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before rank 0 is tried again.
const PAUSE: Duration = Duration::from_millis(50);
/// How much longer than rank 0 the others wait for the answer: it names who is missing.
const MARGIN: Duration = Duration::from_secs(2);

/// A rank that comes to the meeting.
pub(super) struct Attendant<'a> {
    pub job: &'a str,
    pub rank: u16,
    pub ranks: u16,
    /// What it tells the others.
    pub address: SocketAddr,
}

/// A rank's line, and the connection for the answer.
struct Arrival {
    rank: u16,
    said: Said,
    stream: TcpStream,
}

/// What a rank said of its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    Address(SocketAddr),
    /// The address is not the one that it came from, which is this.
    Behind(IpAddr),
}

/// Listens where the ranks meet, as rank 0.
///
/// # Errors
/// [`Error::NoPeer`].
pub(super) fn listen(place: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(place).map_err(|error| Error::NoPeer {
        why: format!(
            "rank 0 cannot listen at {place}: {error}; set MASTER_ADDR to an address of rank 0's \
             host, and MASTER_PORT to a port that is free there"
        ),
    })
}

impl Attendant<'_> {
    /// Holds the meeting. Returns the addresses of all ranks, in their order.
    ///
    /// # Errors
    /// [`control::Error::Missing`]; [`Error::NoPeer`] for ranks behind NAT.
    pub fn hold(&self, listener: TcpListener, timeout: Duration) -> Result<Vec<SocketAddr>, Error> {
        let begin = Instant::now();
        let listener = Arc::new(listener);
        let arrivals = self.listen(&listener);
        let mut arrived: BTreeMap<u16, Arrival> = BTreeMap::new();
        while arrived.len() + 1 < self.ranks.into() {
            let left = timeout.saturating_sub(begin.elapsed());
            let Ok(arrival) = arrivals.recv_timeout(left) else { break };
            arrived.insert(arrival.rank, arrival);
        }
        // Ends the thread that listens.
        let _ = shutdown(&listener, Shutdown::Both);
        let addresses: Vec<_> = (0..self.ranks)
            .map(|rank| match arrived.get(&rank) {
                _ if rank == self.rank => Said::Address(self.address),
                arrival => arrival.map_or(Said::Nothing, |arrival| arrival.said),
            })
            .collect();
        let line = answer(&addresses);
        for mut arrival in arrived.into_values() {
            // A rank that is gone by now is missed when the job starts.
            let _ = arrival.stream.write_all(line.as_bytes());
        }
        self.read_answer(&line, timeout)
    }

    /// Takes connections, in threads, until the listener is shut down. Those that say nothing in
    /// time, or something else than a rank of this job, are closed.
    fn listen(&self, listener: &Arc<TcpListener>) -> Receiver<Arrival> {
        let (tell, arrivals) = mpsc::channel();
        let (listener, head, ranks) = (Arc::clone(listener), self.head(), self.ranks);
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (tell, head) = (tell.clone(), head.clone());
                thread::spawn(move || hear(stream, &head, ranks).map(|arrival| tell.send(arrival)));
            }
        });
        arrivals
    }

    /// Comes to the meeting. Returns the addresses of all ranks, in their order.
    ///
    /// # Errors
    /// [`Error::NoPeer`] when nobody answers, or for ranks behind NAT;
    /// [`control::Error::Missing`].
    pub fn attend(&self, place: SocketAddr, timeout: Duration) -> Result<Vec<SocketAddr>, Error> {
        let begin = Instant::now();
        let failed = |why: String| Error::NoPeer {
            why: format!(
                "the rank that they meet at does not answer at {place}: {why}; start it, and set \
                 MASTER_ADDR and MASTER_PORT, or the unique id, to the same on all ranks"
            ),
        };
        loop {
            let left = timeout.saturating_sub(begin.elapsed());
            let attempt = self.ask(place, left);
            match attempt {
                Ok(line) => return self.read_answer(&line, timeout),
                Err(error) if left.is_zero() => return Err(failed(error.to_string())),
                // It may not have started yet.
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    fn ask(&self, place: SocketAddr, left: Duration) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&place, left.max(PAUSE))?;
        stream.set_read_timeout(Some(left + MARGIN))?;
        let Self { rank, address, .. } = self;
        stream.write_all(format!("{} {rank} {address}\n", self.head()).as_bytes())?;
        let line = read_line(&stream)?;
        if line.ends_with('\n') { Ok(line) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    /// What ranks of the same job begin their line with.
    fn head(&self) -> String {
        // A name may have blanks.
        format!("{HEAD} {:?} {}", self.job, self.ranks)
    }

    /// The addresses in the answer.
    fn read_answer(&self, line: &str, waited: Duration) -> Result<Vec<SocketAddr>, Error> {
        let said: Vec<Said> = line.trim_end().split(' ').map(Said::read).collect();
        let of_kind = |wanted: fn(&Said) -> bool| {
            (0..).zip(&said).filter(move |(_, said)| wanted(said)).map(|(rank, _)| rank)
        };
        let missing: Vec<u16> = of_kind(|said| *said == Said::Nothing).collect();
        if !missing.is_empty() || said.len() != usize::from(self.ranks) {
            let (job, world_size) = (self.job.to_owned(), self.ranks);
            return Err(control::Error::Missing { job, world_size, waited, ranks: missing }.into());
        }
        let address = |(rank, said): (usize, &Said)| match said {
            Said::Behind(seen) => Err(Error::NoPeer {
                why: format!(
                    "rank {rank} is behind NAT: it comes from {seen}, which is not its own \
                     address; run containers in the host's network, or give an aggregator"
                ),
            }),
            Said::Address(address) => Ok(Some(*address)),
            Said::Nothing => Ok(None),
        };
        let addresses = said.iter().enumerate().map(address).collect::<Result<Vec<_>, _>>()?;
        Ok(addresses.into_iter().flatten().collect())
    }
}

/// The line of a rank of this job.
fn hear(stream: TcpStream, head: &str, ranks: u16) -> io::Result<Arrival> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let line = read_line(&stream)?;
    let nonsense = || io::Error::from(ErrorKind::InvalidData);
    let told = line.trim_end().strip_prefix(head).ok_or_else(nonsense)?;
    let (rank, address) = told.trim_start().split_once(' ').ok_or_else(nonsense)?;
    let rank = rank.parse().ok().filter(|rank| *rank < ranks).ok_or_else(nonsense)?;
    let address: SocketAddr = address.parse().map_err(|_| nonsense())?;
    let seen = stream.peer_addr()?.ip().to_canonical();
    // From the same host it may come by loopback.
    let said = match seen == address.ip() || seen.is_loopback() {
        true => Said::Address(address),
        false => Said::Behind(seen),
    };
    Ok(Arrival { rank, said, stream })
}

/// The answer to all ranks: what each said, in their order.
fn answer(all: &[Said]) -> String {
    all.iter().map(Said::word).collect::<Vec<_>>().join(" ") + "\n"
}

impl Said {
    fn word(&self) -> String {
        match self {
            Self::Nothing => "-".to_owned(),
            Self::Address(address) => address.to_string(),
            Self::Behind(seen) => format!("~{seen}"),
        }
    }

    fn read(word: &str) -> Self {
        let seen = word.strip_prefix('~').and_then(|seen| seen.parse().ok()).map(Self::Behind);
        seen.or(word.parse().ok().map(Self::Address)).unwrap_or(Self::Nothing)
    }
}

fn read_line(stream: &TcpStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(rank: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, rank as u8], 4000 + rank))
    }

    /// A port that was free a moment ago.
    fn place() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn come(
        place: SocketAddr,
        present: &[u16],
        timeout: Duration,
    ) -> Vec<Result<Vec<SocketAddr>, Error>> {
        meet(|| listen(place), place, present, timeout)
    }

    /// As [`come`], where rank 0 listens by this.
    fn meet(
        listen: impl Fn() -> Result<TcpListener, Error> + Copy + Send,
        place: SocketAddr,
        present: &[u16],
        timeout: Duration,
    ) -> Vec<Result<Vec<SocketAddr>, Error>> {
        thread::scope(|scope| {
            let run = |rank: u16| {
                let attendant = Attendant { job: "a job", rank, ranks: 4, address: address(rank) };
                move || match rank {
                    0 => listen().and_then(|listener| attendant.hold(listener, timeout)),
                    _ => attendant.attend(place, timeout),
                }
            };
            let ranks: Vec<_> = present.iter().map(|rank| scope.spawn(run(*rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_learn_the_addresses_of_all() {
        let listener = listen(place()).unwrap();
        let place = listener.local_addr().unwrap();
        // Strangers do no harm: this one comes before all ranks, and says nothing.
        let _quiet = TcpStream::connect(place).unwrap();
        let all: Vec<_> = (0..4).map(address).collect();
        let listen = || Ok(listener.try_clone().unwrap());
        let told = meet(listen, place, &[3, 1, 2, 0], Duration::from_secs(60));
        assert_eq!(told, vec![Ok(all); 4]);
    }

    #[test]
    fn all_hear_who_is_missing() {
        let waited = Duration::from_millis(300);
        let missing = control::Error::Missing {
            job: "a job".to_owned(),
            world_size: 4,
            waited,
            ranks: vec![1, 3],
        };
        assert_eq!(come(place(), &[0, 2], waited), vec![Err(Error::Control(missing)); 2]);
    }

    #[test]
    fn a_rank_0_that_is_not_there_is_named() {
        let told = come(place(), &[1], Duration::from_millis(200)).remove(0).unwrap_err();
        assert!(told.to_string().contains("does not answer at 127.0.0.1:"), "{told}");
    }

    #[test]
    fn ranks_behind_nat_are_named() {
        let attendant = Attendant { job: "a job", rank: 0, ranks: 3, address: address(0) };
        let behind = Said::Behind("192.168.1.7".parse().unwrap());
        let line = answer(&[Said::Address(address(0)), Said::Address(address(1)), behind]);
        assert_eq!(line, "10.0.0.0:4000 10.0.0.1:4001 ~192.168.1.7\n");
        let told = attendant.read_answer(&line, Duration::ZERO).unwrap_err().to_string();
        let expected = "ranks without an aggregator serve each other, but rank 2 is behind NAT: it \
                        comes from 192.168.1.7, which is not its own address; run containers in \
                        the host's network, or give an aggregator";
        assert_eq!(told, expected);
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = taken.local_addr().unwrap();
        let told = come(place, &[0], Duration::from_millis(200)).remove(0).unwrap_err();
        assert!(told.to_string().contains("MASTER_PORT to a port that is free"), "{told}");
    }
}
