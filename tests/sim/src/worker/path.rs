//! A rank opens the paths of its shards, one after another, and meets the other ranks of its host.

use switchml_protocol::RANKS_PER_GROUP;
use switchml_protocol::capabilities::Capabilities;
use switchml_worker_core::hello::{Hello, HelloStep, OpenPath};
use switchml_worker_core::packet::len_of;
use switchml_worker_core::session;

use super::{Assigned, Phase, Worker};
use crate::hosts::Shared;
use crate::net::Violation;
use crate::oracle::End;
use crate::surroundings::Surroundings;

impl Worker {
    pub(super) fn open_path(&mut self, world: &mut Surroundings<'_>) {
        let Some(assigned) = &self.assigned else { return };
        let Assigned { identity, max_lanes, capabilities, .. } = *assigned;
        world.oracle.join(identity.epoch, identity.ranks);
        if assigned.shards.len() > 1 {
            world.net.tally.wide += 1;
        }
        let asks_group = capabilities.contains(Capabilities::GROUP_HELLOS);
        let hello = self.hello(world, assigned, 0, (max_lanes, asks_group));
        self.phase = Phase::Greeting { hello, open: Vec::new() };
    }

    fn hello(
        &self,
        world: &mut Surroundings<'_>,
        assigned: &Assigned,
        shard: usize,
        (lanes, asks_group): (u16, bool),
    ) -> Hello {
        // The interface's MTU: the path may pass less.
        let largest = world.net.largest_packet(self.index) + world.net.rng.below(256) as usize;
        let hello = Hello::new(assigned.identity(shard), assigned.hello_secret, largest, lanes);
        if asks_group { hello.ask_group() } else { hello }
    }

    pub(super) fn greet(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        loop {
            let Phase::Greeting { hello, open } = &mut self.phase else { return Ok(()) };
            let shard = open.len();
            match hello.step(world.net.now) {
                HelloStep::Send(header) => {
                    let mut packet = vec![0xEE; len_of(&header)];
                    hello.fill(&header, &mut packet);
                    let port = self.port(world, shard);
                    world.net.to_aggregator(self.index, port, &packet);
                }
                HelloStep::Wait(until) => {
                    self.turn_by(world, until);
                    return Ok(());
                }
                HelloStep::Open(path) => self.go_on_from(world, path)?,
                HelloStep::Failed(_) => return self.leave(world, End::PathClosed, None),
            }
        }
    }

    /// The path of a shard is open: opens the next, like `open_paths` of the library, or is ready.
    fn go_on_from(
        &mut self,
        world: &mut Surroundings<'_>,
        path: OpenPath,
    ) -> Result<(), Violation> {
        let (Phase::Greeting { open, .. }, Some(assigned)) = (&mut self.phase, &self.assigned)
        else {
            return Ok(());
        };
        let mut open = std::mem::take(open);
        open.push(path);
        let mut groups = open.iter().map(|path| path.hears_group);
        if open.len() < assigned.shards.len() {
            let asks_group = groups.all(|hears| hears == Some(true));
            let hello = self.hello(world, assigned, open.len(), (path.lanes, asks_group));
            self.phase = Phase::Greeting { hello, open };
            return Ok(());
        }
        let needs_copies = groups.any(|hears| hears == Some(false));
        let lanes = open.iter().map(|path| path.lanes).min().unwrap_or_default();
        self.met = self.meet(world, assigned);
        self.phase = Phase::Open(open);
        self.tell_session(world, session::Event::PathOpen { lanes, needs_copies })
    }

    /// Comes to the other ranks of its host, if sums of theirs count, like `Builder::connect`.
    fn meet(&self, world: &mut Surroundings<'_>, assigned: &Assigned) -> Option<(Shared, usize)> {
        let Assigned { identity, capabilities, .. } = assigned;
        if !capabilities.contains(Capabilities::PARTIAL_SUMS) || identity.tag_len() > 0 {
            return None;
        }
        let (host, group) = (world.scenario.hosts[self.index], self.rank / RANKS_PER_GROUP);
        world.hosts.meet((host, identity.epoch, group), self.rank)
    }
}
