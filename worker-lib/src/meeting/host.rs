//! The rank that listens where ranks meet. It goes on until its job has ended, so that a second job
//! at that place is found out: rule 22.22 of `docs/spec`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use switchml_userspace::segments;

use super::message::{Answer, Introduction, Presence, receive, send};
use crate::error::Error;
use crate::per_process::{Namespace, namespace};

/// How long a connection may take to say its line.
const PATIENCE: Duration = Duration::from_secs(5);

/// The hosts of this process, by network namespace, for its next communicators.
static HOSTS: Mutex<Vec<(Namespace, Weak<Host>)>> = Mutex::new(Vec::new());

/// A place where ranks meet, of the rank that listens there.
pub struct Host {
    place: SocketAddr,
    listener: Arc<TcpListener>,
    state: Mutex<State>,
    /// Notified when a rank has come, or something is wrong.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The rank that listens, as of the meeting that is open, or else of the last one.
    own: Option<Introduction>,
    is_open: bool,
    arrived: BTreeMap<u16, Arrival>,
    /// The last meeting to which all ranks came.
    last: Option<Held>,
    /// Why nobody can meet here any more.
    failed: Option<String>,
}

/// A rank that waits for the answer.
struct Arrival {
    introduction: Introduction,
    presence: Presence,
    stream: TcpStream,
}

/// A meeting to which all ranks came.
struct Held {
    id: String,
    /// Until when its ranks would have waited for others of their own jobs.
    until: Instant,
    /// The ranks' processes, for people.
    who: BTreeMap<u16, String>,
    /// Ends the job of these ranks.
    end: Option<Box<dyn Fn(Error) + Send + Sync>>,
}

/// What becomes of a rank that has come.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It waits for the others.
    Joins,
    /// It has come to the next meeting, too early.
    Later,
    /// It does not belong here.
    Refused(String),
    /// Nobody can tell which ranks belong together, or they cannot form a job.
    Fails(String),
}

impl Host {
    /// Listens at a place; if this process does so already, for an earlier communicator, it goes on
    /// with that.
    ///
    /// # Errors
    /// Those of the system.
    pub fn at(place: SocketAddr) -> std::io::Result<Arc<Self>> {
        let mut hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|(_, host)| host.strong_count() > 0);
        let here = namespace();
        let known = hosts.iter().filter(|(namespace, _)| *namespace == here);
        let known = known.filter_map(|(_, host)| host.upgrade()).find(|host| host.place == place);
        if let Some(known) = known {
            return Ok(known);
        }
        let host = Self::by(segments::listen(place)?)?;
        hosts.push((here, Arc::downgrade(&host)));
        Ok(host)
    }

    /// Listens by this.
    ///
    /// # Errors
    /// Those of the system.
    pub fn by(listener: TcpListener) -> std::io::Result<Arc<Self>> {
        let (place, listener) = (listener.local_addr()?, Arc::new(listener));
        let (state, changed) = Default::default();
        let host = Arc::new(Self { place, listener: Arc::clone(&listener), state, changed });
        let weak = Arc::downgrade(&host);
        let accept = move || {
            while let Ok((stream, _)) = listener.accept() {
                let weak = Weak::clone(&weak);
                // Strangers that say nothing keep no rank waiting. If the system refuses a thread,
                // the stream is closed, and a rank comes again.
                let _ = thread::Builder::new().spawn(move || hear(&weak, stream));
            }
        };
        thread::Builder::new().name("switchml-meeting".to_owned()).spawn(accept)?;
        Ok(host)
    }

    /// Where it listens.
    pub fn place(&self) -> SocketAddr {
        self.place
    }

    /// Holds a meeting as this rank, of so many ranks as it says, and looks for ranks of other jobs
    /// for `settle` longer than it must. Returns the answer to all ranks.
    pub fn hold(&self, own: Introduction, timeout: Duration, settle: Duration) -> Answer {
        let mut state = self.lock();
        state.own = Some(own.clone());
        state.is_open = true;
        let others = usize::from(own.world_size).saturating_sub(1);
        let waits = |state: &mut State| state.failed.is_none() && state.arrived.len() < others;
        let waited = self.changed.wait_timeout_while(state, timeout, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_well = |state: &mut State| state.failed.is_none() && state.arrived.len() == others;
        let waited = self.changed.wait_timeout_while(state, settle, is_well);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_open = false;
        // The last rank to come may wait that long for others of its own job.
        let answer = state.answer(&own, self.place, Instant::now() + timeout);
        let arrived = std::mem::take(&mut state.arrived);
        drop(state);
        for arrival in arrived.into_values() {
            // A rank that is gone by now is missed when the job starts.
            let _ = send(&arrival.stream, &answer);
        }
        answer
    }

    /// Has `end` called once if the job of the last meeting must end because ranks of two jobs may
    /// have met.
    pub fn on_mixed_up(&self, end: impl Fn(Error) + Send + Sync + 'static) {
        let mut state = self.lock();
        match (state.failed.clone(), &mut state.last) {
            (Some(why), _) => end(Error::Meeting { why }),
            (None, Some(last)) => last.end = Some(Box::new(end)),
            (None, None) => {}
        }
    }

    fn arrive(&self, introduction: Introduction, presence: Presence, stream: TcpStream) {
        let mut state = self.lock();
        let now = Instant::now();
        // If it has gone and comes again, it is no second one.
        let rank = introduction.rank;
        if state.arrived.get(&rank).is_some_and(|before| is_closed(&before.stream)) {
            state.arrived.remove(&rank);
        }
        match state.judge(&introduction, self.place, now) {
            Verdict::Joins => {
                state.arrived.insert(rank, Arrival { introduction, presence, stream });
                self.changed.notify_all();
            }
            Verdict::Later => {
                let _ = send(&stream, &Answer::Later);
            }
            Verdict::Refused(why) => {
                let _ = send(&stream, &Answer::Refused(why));
            }
            Verdict::Fails(why) => {
                // Before the job ends, and perhaps this process with it: a rank without an answer
                // would come again, and meet the next rank 0 here, which knows of no other job.
                let _ = send(&stream, &Answer::Refused(why.clone()));
                state.failed = Some(why.clone());
                self.changed.notify_all();
                let end = state.last.as_mut().and_then(|last| last.end.take());
                drop(state);
                if let Some(end) = end {
                    end(Error::Meeting { why });
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Ends the thread that listens.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

impl State {
    fn judge(&self, visitor: &Introduction, place: SocketAddr, now: Instant) -> Verdict {
        let Some(own) = &self.own else { return Verdict::Later };
        if let Some(why) = visitor.is_foreign(own) {
            return Verdict::Refused(why);
        }
        if let Some(why) = &self.failed {
            return Verdict::Refused(why.clone());
        }
        let rank = visitor.rank;
        if rank >= visitor.world_size {
            return Verdict::Refused(format!("there is no rank {rank} of {}", visitor.world_size));
        }
        if let Some(last) = &self.last
            && visitor.after.as_ref() != Some(&last.id)
        {
            let first = last.who.get(&rank).map_or_else(|| own.who(), String::clone);
            let why = twice(visitor, &first, place);
            let is_late = self.is_open || now > last.until;
            return if is_late { Verdict::Refused(why) } else { Verdict::Fails(why) };
        }
        if !self.is_open {
            return Verdict::Later;
        }
        let first = self.arrived.get(&rank).map(|arrival| &arrival.introduction);
        if let Some(first) = first.or((rank == own.rank).then_some(own)) {
            return Verdict::Fails(twice(visitor, &first.who(), place));
        }
        visitor.difference(own).map_or(Verdict::Joins, Verdict::Fails)
    }

    /// The answer to all ranks, at the end of a meeting.
    fn answer(&mut self, own: &Introduction, place: SocketAddr, until: Instant) -> Answer {
        if let Some(why) = &self.failed {
            return Answer::Refused(why.clone());
        }
        let presence = |rank| match self.arrived.get(&rank) {
            _ if rank == own.rank => Presence::Address(own.address),
            arrival => arrival.map_or(Presence::Missing, |arrival| arrival.presence),
        };
        let ranks: Vec<_> = (0..own.world_size).map(presence).collect();
        let id = super::draw_id();
        if !ranks.contains(&Presence::Missing) {
            let visitors = self.arrived.values().map(|arrival| &arrival.introduction);
            let who = visitors.chain([own]).map(|one| (one.rank, one.who())).collect();
            self.last = Some(Held { id: id.clone(), until, who, end: None });
        }
        let job = own.job.clone().unwrap_or_else(|| format!("{place}-{id}"));
        Answer::Met { id, job, ranks }
    }
}

/// That a rank has come a second time.
fn twice(visitor: &Introduction, first: &str, place: SocketAddr) -> String {
    format!(
        "rank {} has come to {place} twice, as {first} and as {}: two jobs must not meet at one \
         place; give each job a MASTER_PORT of its own, and start each rank once",
        visitor.rank,
        visitor.who()
    )
}

/// Hears a rank, and hands it to the host. What is no rank's line is closed.
fn hear(host: &Weak<Host>, stream: TcpStream) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let introduction: Introduction = receive(&stream).ok()?;
    let seen = stream.peer_addr().ok()?.ip().to_canonical();
    // From the same host it may come by loopback.
    let is_own = |address: SocketAddr| seen == address.ip() || seen.is_loopback();
    let presence = match introduction.address {
        Some(peer) if !is_own(peer.address) => Presence::Behind(seen),
        address => Presence::Address(address),
    };
    host.upgrade()?.arrive(introduction, presence, stream);
    Some(())
}

/// Whether the other side has closed a connection, on which it says no more.
fn is_closed(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(stream, &mut [0u8], flags) {
        Ok((_, read)) => read == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::meeting::message::VERSION;

    fn rank(rank: u16, after: Option<&str>) -> Introduction {
        Introduction {
            meeting: VERSION,
            rank,
            world_size: 2,
            job: None,
            aggregators: 0,
            weights: Vec::new(),
            own_hosts: true,
            address: None,
            host: "node".to_owned(),
            process: 1,
            user: Some(1000),
            after: after.map(str::to_owned),
        }
    }

    /// A host whose last meeting is as given, whose ranks would have waited until `until`.
    fn state(is_open: bool, last: Option<&str>, until: Instant) -> State {
        let who = BTreeMap::from([(0, "a".to_owned()), (1, "b".to_owned())]);
        let last = last.map(|id| Held { id: id.to_owned(), until, who, end: None });
        State { own: Some(rank(0, None)), is_open, last, ..State::default() }
    }

    #[test]
    fn a_second_job_is_looked_for_as_long_as_the_last_rank_would_have_waited() {
        let host = Host::by(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let timeout = Duration::from_secs(60);
        let came = thread::scope(|scope| {
            let held = scope.spawn(|| host.hold(rank(0, None), timeout, Duration::ZERO));
            // Rank 0 may be a rank of another job, and have waited for a while.
            thread::sleep(Duration::from_millis(50));
            let came = Instant::now();
            crate::meeting::guest::attend(host.place(), &rank(1, None), timeout).unwrap();
            held.join().unwrap();
            came
        });
        assert!(host.lock().last.as_ref().unwrap().until >= came + timeout);
    }

    #[test]
    fn a_rank_of_a_second_job_has_its_answer_when_the_job_ends() {
        let host = Host::by(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        thread::scope(|scope| {
            let held = scope.spawn(|| host.hold(rank(0, None), PATIENCE, Duration::ZERO));
            crate::meeting::guest::attend(host.place(), &rank(1, None), PATIENCE).unwrap();
            held.join().unwrap();
        });
        let second = TcpStream::connect(host.place()).unwrap();
        second.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let (told, answers) = mpsc::channel();
        let answered = second.try_clone().unwrap();
        host.on_mixed_up(move |_| told.send(receive::<Answer>(&answered)).unwrap());
        send(&second, &rank(1, None)).unwrap();
        let answer = answers.recv_timeout(2 * PATIENCE).unwrap();
        assert!(matches!(answer, Ok(Answer::Refused(_))));
    }

    #[test]
    fn who_is_let_in() {
        let begin = Instant::now();
        let (place, until) = (SocketAddr::from(([10, 0, 0, 1], 7)), begin + PATIENCE);
        let (soon, late) = (begin, until + PATIENCE);
        let judge =
            |state: &State, visitor: &Introduction, at| match state.judge(visitor, place, at) {
                Verdict::Joins => "joins",
                Verdict::Later => "later",
                Verdict::Refused(_) => "refused",
                Verdict::Fails(_) => "fails",
            };
        let first = state(true, None, until);
        let running = state(false, Some("x"), until);
        let next = state(true, Some("x"), until);
        let of_another_user = Introduction { user: Some(1001), ..rank(1, None) };
        let of_another_name = Introduction { job: Some("b".to_owned()), ..rank(1, None) };
        let older = Introduction { meeting: 1, ..rank(1, None) };
        let of_three = Introduction { world_size: 3, ..rank(1, None) };
        for (state, visitor, at, expected) in [
            (&first, rank(1, None), soon, "joins"),
            // It was in another job there, which is over.
            (&first, rank(1, Some("w")), soon, "joins"),
            (&first, rank(0, None), soon, "fails"),
            (&first, of_three, soon, "fails"),
            (&first, of_another_user.clone(), soon, "refused"),
            (&first, of_another_name, soon, "refused"),
            (&first, older, soon, "refused"),
            (&running, rank(1, Some("x")), soon, "later"),
            (&running, rank(1, None), soon, "fails"),
            (&running, rank(0, None), soon, "fails"),
            (&running, rank(1, Some("w")), soon, "fails"),
            (&running, of_another_user, soon, "refused"),
            (&running, rank(1, None), late, "refused"),
            (&next, rank(1, Some("x")), soon, "joins"),
            // It cannot be mixed up with ranks that know the last meeting.
            (&next, rank(1, None), soon, "refused"),
            // The meeting was over before all had come.
            (&state(false, None, until), rank(1, None), soon, "later"),
            (&first, rank(2, None), soon, "refused"),
        ] {
            assert_eq!(judge(state, &visitor, at), expected, "{visitor:?}");
        }
    }
}
