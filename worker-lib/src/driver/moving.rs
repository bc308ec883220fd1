//! How a driver gets from a lost aggregator to another one.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::{Duration, Instant};

use switchml_worker_core::engine::Config;

use super::Driver;
use super::changeover::Changeover;
use crate::control::Membership;
use crate::error::Error;
use crate::transport::Transport;
use crate::waker::Wakers;

/// A driver's part in moves.
pub(crate) struct Moves {
    /// Says of an error, after so many moves, whether the aggregator is lost by it, and another one
    /// may go on; the driver then waits for that.
    pub lose: Lose,
    pub handover: Arc<Handover>,
    /// How often it has moved.
    pub count: u64,
}

/// See [`Moves::lose`].
pub(crate) type Lose = Box<dyn Fn(u64, &Error) -> bool + Send>;

/// Where a driver finds its way to the next aggregator.
pub(crate) struct Handover {
    wakers: Wakers,
    changeover: Changeover<Arrival>,
}

/// A way to the next aggregator.
pub(crate) struct Arrival {
    pub transport: Box<dyn Transport>,
    pub config: Config,
    /// What a HELLO took there and back.
    pub rtt: Duration,
    /// Packets of a superpacket.
    pub batch: usize,
    pub group: Option<SocketAddrV4>,
    pub secret: u32,
    pub membership: Arc<Membership>,
    /// Moves so far, with this one.
    pub count: u64,
}

impl Handover {
    pub fn new(wakers: Wakers) -> Self {
        Self { wakers, changeover: Changeover::new() }
    }

    /// The wakers of the driver.
    pub fn wakers(&self) -> &Wakers {
        &self.wakers
    }

    /// The aggregator is lost; so is a way to it that the driver has not taken yet.
    pub fn lose(&self) {
        self.changeover.lose();
    }

    /// Another aggregator goes on.
    pub fn arrive(&self, arrival: Arrival) {
        self.changeover.arrive(arrival);
        self.wakers.wake();
    }
}

impl Driver {
    /// Whether it has an aggregator, maybe another one from now on.
    pub(super) fn is_connected(&mut self) -> bool {
        let Some(moves) = &mut self.moves else { return true };
        if !moves.handover.changeover.is_lost() {
            return true;
        }
        let Some(arrival) = moves.handover.changeover.take() else {
            self.data_path.lose();
            return false;
        };
        let Arrival { transport, config, rtt, batch, group, secret, membership, count } = arrival;
        moves.count = count;
        self.foreign += self.transport.foreign();
        (self.transport, self.group, self.hellos) = (transport, group, (secret, 0));
        // What was under way in shared memory is lost with the aggregator.
        self.shared_memory = None;
        self.membership = Arc::clone(&membership);
        self.sessions.replace(self.stripe, membership);
        self.data_path.resume(config, rtt.as_nanos() as u64, batch as u32)
    }

    /// Waits until there may be another aggregator, or until `until`.
    pub(super) fn wait_for_another(&mut self, until: Option<Instant>) -> Result<(), Error> {
        self.publish();
        // A data plane may outlive its daemon; what it sends would end each wait.
        while self.transport.receive(&mut |_, _| {}).map_err(Error::system("cannot receive"))? > 0 {
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.transport.wait(left, None).map_err(Error::system("cannot wait for another aggregator"))
    }

    /// The outcome of an exchange with the aggregator; `None` if that is lost, and another one may
    /// go on.
    pub(super) fn unless_lost(
        &mut self,
        outcome: Result<usize, Error>,
    ) -> Result<Option<usize>, Error> {
        let error = match outcome {
            Ok(packets) => return Ok(Some(packets)),
            Err(error) => error,
        };
        let Some(Moves { lose, count, .. }) = &self.moves else { return Err(error) };
        if !lose(*count, &error) {
            return Err(error);
        }
        self.membership.lose(&error.cause());
        Ok(None)
    }
}
