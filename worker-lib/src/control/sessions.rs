//! A rank's sessions: one at each aggregator of its job. What ends one ends all (rule 36.5), unless
//! another one takes its place (rule 36.9). So the promises of one aggregator do not depend on the
//! others.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use switchml_protocol::ranks::Ranks;
use switchml_worker_core::session::Goodbye;
use switchml_worker_core::stripes;

use super::{Access, Assigned, Error, Membership, Wish, resolve};

/// Rule 36.19: how long a rank that does not reach another one waits for the rest, to tell them.
const TELLING: Duration = Duration::from_secs(5);

/// How long a rank that hears of another one's end, or does not reach it, waits to hear why: an
/// aggregator that was told may be heard later than one that knows only of the end.
const EXPLAINING: Duration = Duration::from_millis(500);

/// A rank's memberships in a job, by aggregator, in the order that all ranks agree on.
pub struct Sessions {
    memberships: Mutex<Vec<Arc<Membership>>>,
    rank: u16,
}

impl Sessions {
    /// Joins at all of the job's aggregators, and waits until all ranks have joined everywhere.
    /// Returns what each aggregator has assigned.
    ///
    /// # Errors
    ///
    /// The first error of any aggregator: those of [`Membership::begin`] and
    /// [`Membership::assigned`]; [`Error::Twice`] if an aggregator was given twice.
    pub fn join(
        aggregators: &[Access],
        wish: &Wish<'_>,
    ) -> Result<(Self, Vec<(Access, Assigned)>), Error> {
        check_differ(aggregators)?;
        let begun = aggregators.iter().map(|access| Membership::begin(access.clone(), wish));
        let begun: Vec<Membership> = begun.collect::<Result<_, _>>()?;
        let begun: Vec<_> = begun.into_iter().map(Arc::new).collect();
        let peers: Vec<_> = aggregators.iter().map(|access| access.peer).collect();
        let me = (wish.rank as u16, &peers[..]);
        let assigned = all(&begun, me, |membership| membership.assigned())?;
        let joined = aggregators.iter().cloned().zip(assigned);
        let mut all: Vec<_> = begun.into_iter().zip(joined).collect();
        // Rule 36.2.
        all.sort_by_key(|(_, (_, assigned))| assigned.aggregator);
        let (memberships, joined): (Vec<_>, _) = all.into_iter().unzip();
        Ok((Self { memberships: Mutex::new(memberships), rank: wish.rank as u16 }, joined))
    }

    /// Tells all aggregators that chunks of `lanes` lanes pass, at which of them the rank needs
    /// copies of results, and whose it reads, and each its share by these weights; and waits until
    /// every rank is ready everywhere. Returns the lanes of the job's full chunk.
    ///
    /// # Errors
    ///
    /// The first error of any aggregator: those of [`Membership::started`].
    pub fn ready(
        &self,
        lanes: u16,
        (needs_copies, takers): (&[bool], &[Option<u16>]),
        weights: &[u32],
    ) -> Result<u16, Error> {
        let memberships = self.all();
        let copies = needs_copies.iter().zip(takers).zip(stripes::shares(weights));
        for (membership, ((needs_copies, taker), share)) in memberships.iter().zip(copies) {
            membership.set_share(share);
            if let Some(taker) = taker {
                membership.set_taker(*taker);
            }
            membership.path_opened(lanes, *needs_copies);
        }
        let lanes = all(&memberships, (self.rank, &[]), |membership| membership.started())?;
        // They are equal, because every rank has told all aggregators the same.
        Ok(lanes.into_iter().min().unwrap_or_default())
    }

    /// The session by which a stripe is served.
    pub fn at(&self, stripe: usize) -> Arc<Membership> {
        Arc::clone(&self.lock()[stripe])
    }

    /// All sessions, by stripe.
    pub fn all(&self) -> Vec<Arc<Membership>> {
        self.lock().clone()
    }

    /// Another aggregator serves a stripe from now on. The session before must have ended, or be
    /// about to: this waits for its end if nobody else uses it.
    pub fn replace(&self, stripe: usize, membership: Arc<Membership>) {
        let before = std::mem::replace(&mut self.lock()[stripe], membership);
        drop(before);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Membership>>> {
        self.memberships.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a function that tells which ranks have left normally at any of the aggregators.
    pub fn departed(&self) -> impl Fn() -> Ranks + Send + Sync + 'static {
        let boards: Vec<_> = self.all().iter().map(|membership| membership.board()).collect();
        move || {
            let ranks = boards.iter().filter_map(Weak::upgrade).map(|board| board.departed());
            ranks.fold(Ranks::NONE, |all, ranks| all.union(&ranks))
        }
    }

    /// Leaves everywhere, as [`Membership::leave`] does.
    pub fn leave(self) {
        self.end(&Goodbye::default());
    }

    /// Leaves everywhere as failed, as [`Membership::fail`] does.
    pub fn fail(self, error: &str, ranks: Vec<u16>) {
        self.end(&Goodbye { error: error.to_owned(), ranks, ..Goodbye::default() });
    }

    fn end(self, goodbye: &Goodbye) {
        // All aggregators hear it at the same time; dropping a membership waits for its answer.
        self.lock().iter().for_each(|membership| membership.say(goodbye.clone()));
    }
}

/// No two lead to the same aggregator, as far as addresses tell.
fn check_differ(aggregators: &[Access]) -> Result<(), Error> {
    if aggregators.len() < 2 {
        return Ok(());
    }
    let mut known: HashMap<SocketAddr, usize> = HashMap::new();
    for (index, Access { address, .. }) in aggregators.iter().enumerate() {
        for place in resolve(address)? {
            let before = known.insert(place, index).filter(|before| *before != index);
            if let Some(before) = before {
                let (one, other) = (aggregators[before].address.clone(), address.clone());
                return Err(Error::Twice { one, other });
            }
        }
    }
    Ok(())
}

/// News of a membership: that it has ended, or what it was waited for.
enum Told<T> {
    Ended(usize, Error),
    Waited(usize, Result<T, Error>),
}

/// Waits for all memberships of a rank at the same time, each at an aggregator of one of these
/// ranks, or of none. If one fails or ends, the others end, and the ranks there hear why.
fn all<T: Send + 'static>(
    memberships: &[Arc<Membership>],
    (rank, peers): (u16, &[Option<u16>]),
    wait: impl Fn(&Membership) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let (tell, told) = mpsc::channel();
    for (index, membership) in memberships.iter().enumerate() {
        let tell = tell.clone();
        membership.on_end(move |error| drop(tell.send(Told::Ended(index, error))));
    }
    thread::scope(|scope| {
        for (index, membership) in memberships.iter().enumerate() {
            let (answer, wait) = (tell.clone(), &wait);
            let wait = move || drop(answer.send(Told::Waited(index, wait(membership))));
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, wait) {
                let error = Error::System { why: error.to_string() };
                let _ = tell.send(Told::Waited(index, Err(error)));
            }
        }
        Waits { memberships, rank, peers, failure: Failure::None }.take(&told)
    })
}

/// Waits for memberships.
struct Waits<'a> {
    memberships: &'a [Arc<Membership>],
    rank: u16,
    peers: &'a [Option<u16>],
    failure: Failure,
}

/// The first failure.
enum Failure {
    None,
    /// The other ranks are to be told.
    Known(Known),
    Told(Error),
}

/// A failure of which the other ranks are to be told.
struct Known {
    error: Error,
    /// Another rank has ended, or does not answer: until it is time to tell the others, the reason
    /// may come from another aggregator.
    may_be_explained: bool,
    /// When the others are told, if some have joined.
    first: Instant,
    /// When they are told at the latest.
    last: Instant,
}

impl Known {
    fn time(&self, has_joined: bool) -> Instant {
        if has_joined { self.first } else { self.last }
    }
}

impl Waits<'_> {
    fn take<T>(mut self, told: &Receiver<Told<T>>) -> Result<Vec<T>, Error> {
        let mut found: Vec<Option<T>> = self.memberships.iter().map(|_| None).collect();
        let mut open = found.len();
        while open > 0 {
            let has_joined = found.iter().any(Option::is_some);
            let news = match &self.failure {
                Failure::Known(known) => {
                    let left = known.time(has_joined).saturating_duration_since(Instant::now());
                    told.recv_timeout(left).ok()
                }
                _ => told.recv().ok(),
            };
            match news {
                Some(Told::Ended(index, error)) => self.fail(index, error),
                Some(Told::Waited(index, outcome)) => {
                    open -= 1;
                    match outcome {
                        Ok(value) => found[index] = Some(value),
                        Err(error) => self.fail(index, error),
                    }
                }
                None => {}
            }
            self.say(found.iter().any(Option::is_some));
        }
        match self.failure {
            Failure::None => Ok(found.into_iter().flatten().collect()),
            Failure::Known(Known { error, .. }) | Failure::Told(error) => Err(error),
        }
    }

    /// Takes in a failure at an aggregator. The first one counts, but that a rank has ended or does
    /// not answer gives way to the reason: it may have left because of another one.
    fn fail(&mut self, index: usize, error: Error) {
        let now = Instant::now();
        let (explained, told) = (now + EXPLAINING, now + TELLING);
        let known = match (error, self.peers.get(index).copied().flatten()) {
            (Error::Unreachable { address, why }, Some(rank)) => {
                let error = Error::PeerUnreachable { rank, address, why };
                Known { error, may_be_explained: true, first: explained, last: told }
            }
            (error @ Error::Aborted { .. }, Some(_)) if error.ranks().len() == 1 => {
                Known { error, may_be_explained: true, first: explained, last: explained }
            }
            (error, _) => Known { error, may_be_explained: false, first: now, last: now },
        };
        let counts = match &self.failure {
            Failure::None => true,
            Failure::Known(before) => before.may_be_explained && !known.may_be_explained,
            Failure::Told(_) => false,
        };
        if counts {
            self.failure = Failure::Known(known);
        }
    }

    /// Tells the other ranks of the failure if it is time, or if there are any to tell: a rank that
    /// leaves before all have joined says nothing.
    fn say(&mut self, has_joined: bool) {
        let Failure::Known(known) = &self.failure else { return };
        if Instant::now() < known.time(has_joined) {
            return;
        }
        let error = &known.error;
        let mut ranks = error.ranks();
        if let Error::PeerUnreachable { .. } = error {
            ranks.push(self.rank);
        }
        let goodbye = Goodbye { error: error.cause(), ranks, lost_aggregator: false };
        self.memberships.iter().for_each(|membership| membership.say(goodbye.clone()));
        self.failure = Failure::Told(error.clone());
    }
}
