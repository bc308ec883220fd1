//! What goes wrong with a rank's process and its connection.

use switchml_userspace_core::control_plane::{PING_INTERVAL, PING_TIMEOUT};

use super::{Phase, Worker};
use crate::net::{Event, News, Violation};
use crate::oracle::End;
use crate::scenario::Time;
use crate::surroundings::Surroundings;
use crate::tally::Fault;

/// The daemon's ping interval, and how long it waits for an answer.
const PING: (Time, Time) = (PING_INTERVAL.as_nanos() as Time, PING_TIMEOUT.as_nanos() as Time);

impl Worker {
    /// Kills the process; its host too if `silent`, so that no connection is closed.
    pub fn kill(&mut self, world: &mut Surroundings<'_>, silent: bool) -> Result<(), Violation> {
        if matches!(self.phase, Phase::Rest(_)) {
            return Ok(());
        }
        world.net.tally.fault(if silent { Fault::HostDeath } else { Fault::Crash });
        if silent {
            for member in self.members.values_mut() {
                let Some(connection) = member.connection.take() else { continue };
                let after = PING.1 + world.net.rng.below(PING.0);
                world.net.go_silent(connection, after);
            }
        }
        self.end_at_once(world)
    }

    fn end_at_once(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        let told = self.told(world, None);
        self.judge(world, &told, &End::Killed, None)?;
        self.rest_as(world, End::Killed);
        Ok(())
    }

    /// Has the process die in a later turn, after so many steps.
    pub fn doom(&mut self, steps: u32, restart: Option<Time>) {
        if !matches!(self.phase, Phase::Rest(_)) {
            self.doom.set(1 + steps);
            self.restart = restart;
        }
    }

    /// The process has died in the middle of its turn.
    pub(super) fn die(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        world.net.tally.fault(Fault::DeathInTurn);
        self.end_at_once(world)?;
        if let Some(after) = self.restart.filter(|_| !self.starts) {
            self.starts = true;
            world.net.schedule(world.net.now + after, Event::Start(self.index));
        }
        Ok(())
    }

    /// Breaks a control connection.
    pub fn disconnect(&mut self, world: &mut Surroundings<'_>) {
        let connections: Vec<_> =
            self.members.values().filter_map(|member| member.connection).collect();
        // Nothing is drawn where there is one alone.
        let connection = match connections[..] {
            [] => return,
            [only] => only,
            _ => world.net.rng.pick(&connections),
        };
        world.net.tally.fault(Fault::Disconnect);
        world.oracle.disconnect(&self.who());
        world.net.break_off(connection);
    }

    /// Its connections with an aggregator are about to break, at the daemon's end or between
    /// combiners.
    pub fn lose_connection(&mut self, world: &mut Surroundings<'_>, aggregator: usize) {
        let mut members = self.members.values();
        if members.any(|member| member.aggregator == aggregator && member.connection.is_some()) {
            world.oracle.disconnect(&self.who());
        }
    }

    /// Stops the process for a while. The daemon gives it up when it does not answer for too long.
    pub fn stall(&mut self, world: &mut Surroundings<'_>, time: Time) {
        if matches!(self.phase, Phase::Rest(_)) {
            return;
        }
        world.net.tally.fault(Fault::Stall);
        self.stalled_until = self.stalled_until.max(world.net.now + time);
        let patience = PING.1 + world.net.rng.below(PING.0);
        if time <= patience {
            return;
        }
        for connection in self.members.values().filter_map(|member| member.connection) {
            world.oracle.disconnect(&self.who());
            world.net.go_silent(connection, patience);
            world.net.tell(connection, News::Lost);
        }
    }

    /// Puts a packet into the socket's buffer while the process is frozen; false if the buffer is
    /// full.
    pub fn has_room(&mut self, world: &mut Surroundings<'_>) -> bool {
        let room = self.waiting < self.plan(world).socket_room;
        if room {
            self.waiting += 1
        } else {
            world.net.tally.fault(Fault::SocketFull)
        }
        room
    }
}
