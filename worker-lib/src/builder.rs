//! Settings of a communicator, and how it gets connected.

use std::env;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use switchml_protocol::MAX_RANKS;

use crate::communicator::{Communicator, Info};
use crate::control::Session;
use crate::driver::{Driver, Shared};
use crate::engine::{Config, Engine, Identity, RttLimits};
use crate::error::Error;
use crate::hello::{OpenPath, open_path, packet_len};
use crate::schedule::Schedule;
use crate::transport::{Transport, Udp};
use crate::waker::Waker;

/// Chunks outstanding at the start: about 90 KB, which any switch port buffers.
const INITIAL_WINDOW: u32 = 64;
/// Floor of the retransmission timeout: what a busy host may let a packet wait.
const TIMEOUT_FLOOR: Duration = Duration::from_micros(500);
/// Ceiling of the retransmission timeout: the pace at which a rank asks whether a late peer has come.
const TIMEOUT_CEILING: Duration = Duration::from_millis(100);
/// Retransmission timeout before there is a round-trip time.
const TIMEOUT_INITIAL: Duration = Duration::from_millis(10);
/// Floor of the reordering window.
const REORDERING: Duration = Duration::from_micros(200);

/// Settings of a [`Communicator`].
#[derive(Clone, Debug)]
pub struct Builder {
    aggregator: Option<String>,
    job: String,
    rank: Option<u32>,
    world_size: Option<u32>,
    deadline: Duration,
    join_timeout: Duration,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            aggregator: None,
            job: "default".to_owned(),
            rank: None,
            world_size: None,
            deadline: Duration::from_secs(5),
            join_timeout: Duration::from_secs(60),
        }
    }
}

impl Builder {
    /// Where the aggregator's control plane is: `host`, `host:port`, or an IP address. Required.
    pub fn aggregator(mut self, address: impl Into<String>) -> Self {
        self.aggregator = Some(address.into());
        self
    }

    /// Name of the job: ranks that give the same name at the same aggregator belong together. "default" unless given.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = name.into();
        self
    }

    /// This process's rank, 0 to world size - 1, each once. Required.
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Number of ranks of the job, 1 to 64. Required.
    pub fn world_size(mut self, ranks: u32) -> Self {
        self.world_size = Some(ranks);
        self
    }

    /// A collective without any progress for so long fails, and names the ranks that it waited for. 5 s unless given. Must cover the time
    /// that ranks may be apart when they call.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long to wait for the other ranks to join. 60 s unless given.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = timeout;
        self
    }

    /// The settings that the environment gives, as torchrun sets it; what is not set there stays as it is.
    ///
    /// | variable | setting |
    /// | --- | --- |
    /// | `RANK`, `WORLD_SIZE` | rank and number of ranks |
    /// | `SWITCHML_AGGREGATOR` | aggregator, `host` or `host:port`; `MASTER_ADDR`'s host unless set |
    /// | `SWITCHML_JOB` | job; `TORCHELASTIC_RUN_ID`, or `MASTER_ADDR:MASTER_PORT`, unless set |
    ///
    /// # Errors
    /// [`Error::Setting`] when a variable is not what it must be.
    pub fn env(mut self) -> Result<Self, Error> {
        self.rank = number("RANK")?.or(self.rank);
        self.world_size = number("WORLD_SIZE")?.or(self.world_size);
        let master = variable("MASTER_ADDR")?;
        let meeting = match (&master, variable("MASTER_PORT")?) {
            (Some(host), Some(port)) => Some(format!("{host}:{port}")),
            _ => None,
        };
        self.aggregator = variable("SWITCHML_AGGREGATOR")?.or(self.aggregator).or(master);
        if let Some(job) = variable("SWITCHML_JOB")?.or(variable("TORCHELASTIC_RUN_ID")?).or(meeting) {
            self.job = job;
        }
        Ok(self)
    }

    /// The aggregator's address as set so far.
    pub fn get_aggregator(&self) -> Option<&str> {
        self.aggregator.as_deref()
    }

    /// The rank as set so far.
    pub fn get_rank(&self) -> Option<u32> {
        self.rank
    }

    /// Joins the job, waits until all its ranks have, and opens the data path.
    ///
    /// # Errors
    /// [`Error::Setting`] for missing or impossible settings; [`Error::Control`] when the aggregator cannot be reached, refuses,
    /// or ranks are missing; [`Error::DataPathClosed`] or [`Error::PathMtu`] when packets do not pass.
    pub fn connect(self) -> Result<Communicator, Error> {
        let (aggregator, rank, world_size) = self.check()?;
        let (session, assigned) = Session::join(&aggregator, &self.job, rank, world_size, self.join_timeout)?;
        let identity =
            Identity { job: assigned.job, epoch: assigned.epoch, rank: rank as u16, ranks: world_size as u16 };
        let waker = Waker::new().map_err(Error::system("cannot make an event"))?;
        let opened = Udp::open(assigned.data_address, assigned.group, waker.clone())
            .map_err(Error::system("cannot open the data sockets"))
            .and_then(|mut udp| Ok((open_path(&mut udp, &identity, assigned.secret, assigned.max_lanes)?, udp)));
        let (path, transport) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                session.leave(Some(&error.to_string()));
                return Err(error);
            }
        };
        let lanes = session.ready(path.lanes)?;
        let info = Info {
            rank,
            world_size,
            job: self.job.clone(),
            chunk_lanes: lanes,
            slots: assigned.slots,
            aggregator: assigned.data_address,
            multicast: assigned.group,
            hello_rtt: path.rtt,
        };
        self.start(session, transport, identity, &path, waker, info)
    }

    fn start(
        self,
        session: Session,
        transport: Udp,
        identity: Identity,
        path: &OpenPath,
        waker: Waker,
        info: Info,
    ) -> Result<Communicator, Error> {
        let shared = Arc::new(Shared::default());
        let (told, thread_waker) = (Arc::clone(&shared), waker.clone());
        session.on_end(move |error| {
            // An earlier failure of this rank's own stays the reason.
            let _ = told.failed.set(error.into());
            thread_waker.wake();
        });
        let packet = packet_len(info.chunk_lanes.into());
        let mut engine = Engine::new(Config {
            identity,
            slots: info.slots,
            initial_window: INITIAL_WINDOW,
            maximum_window: transport.receive_room(packet) as u32,
            rtt: RttLimits {
                initial: TIMEOUT_INITIAL.as_nanos() as u64,
                floor: TIMEOUT_FLOOR.as_nanos() as u64,
                ceiling: TIMEOUT_CEILING.as_nanos() as u64,
            },
            reordering: REORDERING.as_nanos() as u64,
            deadline: u64::try_from(self.deadline.as_nanos()).unwrap_or(u64::MAX),
        });
        engine.sample_rtt(0, path.rtt.as_nanos() as u64);
        let (commands, received) = mpsc::channel();
        let driver = Driver {
            batch: transport.batch(packet) as u32,
            transport,
            engine,
            schedule: Schedule::new(info.chunk_lanes),
            commands: received,
            session,
            shared: Arc::clone(&shared),
            begin: Instant::now(),
            deadline: self.deadline,
        };
        let thread = std::thread::Builder::new()
            .name("switchml-data".to_owned())
            .spawn(move || driver.run())
            .map_err(Error::system("cannot start the data thread"))?;
        Ok(Communicator::new(commands, waker, shared, thread, info))
    }

    /// Aggregator, rank and world size, if they make sense together.
    fn check(&self) -> Result<(String, u32, u32), Error> {
        let missing = |name, allowed| Error::Setting { name, given: "not set".to_owned(), allowed };
        let aggregator = self
            .aggregator
            .clone()
            .ok_or_else(|| missing("aggregator", "give its host, or set SWITCHML_AGGREGATOR"))?;
        let rank = self.rank.ok_or_else(|| missing("rank", "give this process's, or set RANK"))?;
        let world_size =
            self.world_size.ok_or_else(|| missing("world size", "give the number of ranks, or set WORLD_SIZE"))?;
        if !(1..=MAX_RANKS as u32).contains(&world_size) {
            let given = world_size.to_string();
            return Err(Error::Setting { name: "world size", given, allowed: "1 to 64 are allowed" });
        }
        if rank >= world_size {
            let given = format!("{rank} of {world_size}");
            return Err(Error::Setting { name: "rank", given, allowed: "0 to world size - 1 are allowed" });
        }
        Ok((aggregator, rank, world_size))
    }
}

fn variable(name: &'static str) -> Result<Option<String>, Error> {
    match env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(value)) => {
            Err(Error::Setting { name, given: format!("{value:?}"), allowed: "UTF-8 is allowed" })
        }
    }
}

fn number(name: &'static str) -> Result<Option<u32>, Error> {
    let wrong = |given| Error::Setting { name, given, allowed: "a number from 0 is allowed" };
    variable(name)?.map(|value| value.parse().map_err(|_| wrong(format!("{value:?}")))).transpose()
}
