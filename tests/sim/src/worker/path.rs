//! A rank opens the paths of its shards, one after another, and meets the other ranks of its host.

use switchml_protocol::RANKS_PER_GROUP;
use switchml_protocol::capabilities::Capabilities;
use switchml_worker_core::hello::{Hello, HelloStep, OpenPath};
use switchml_worker_core::packet::len_of;
use switchml_worker_core::session;

use super::membership::{Assigned, Membership, Path, Role};
use super::{Phase, Worker};
use crate::hosts::Shared;
use crate::net::{Violation, port_of};
use crate::oracle::End;
use crate::surroundings::Surroundings;

impl Worker {
    /// The rank has been let in at an aggregator. It opens its paths once it is in at all.
    pub(super) fn open_path(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
    ) -> Result<(), Violation> {
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        let Some(assigned) = &member.assigned else { return Ok(()) };
        let (epoch, ranks) = (assigned.identity.epoch, assigned.identity.ranks);
        world.oracle.join(epoch, self.job, ranks)?;
        if assigned.shards.len() > 1 {
            world.net.tally.wide += 1;
        }
        member.path = Path::Wanted;
        self.sessions.push(epoch);
        if let Role::Awaits(stripe) = member.role {
            return self.open_for_move(world, id, stripe);
        }
        let is_wanted = |member: &Membership| matches!(member.path, Path::Wanted);
        if self.members.values().all(is_wanted) && matches!(self.phase, Phase::Joining) {
            self.sort();
            self.greet_next(world);
        }
        Ok(())
    }

    /// Rule 36.2: puts the stripes in the order of their aggregators.
    fn sort(&mut self) {
        let number = |member: &&mut Membership| member.assigned.as_ref().map(|it| it.number);
        let mut members: Vec<_> = self.members.values_mut().collect();
        members.sort_by_key(number);
        for (stripe, member) in members.iter_mut().enumerate() {
            member.role = Role::Serves(stripe);
        }
        self.sessions = members.iter().filter_map(|member| member.key()).collect();
        self.is_in_all = true;
    }

    /// Opens the paths of the next stripe; false if all are open.
    fn greet_next(&mut self, world: &mut Surroundings<'_>) -> bool {
        let stripes = self.members.iter().filter_map(|(id, member)| match member.role {
            Role::Serves(stripe) if matches!(member.path, Path::Wanted) => Some((stripe, *id)),
            _ => None,
        });
        let next = stripes.min();
        if let Some((_, id)) = next {
            self.begin_to_greet(world, id);
        }
        next.is_some()
    }

    pub(super) fn begin_to_greet(&mut self, world: &mut Surroundings<'_>, id: usize) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(assigned) = &member.assigned else { return };
        let asks_group = assigned.capabilities.contains(Capabilities::GROUP_HELLOS);
        let way = (self.index, member.aggregator);
        let hello = hello(world, way, assigned, 0, (assigned.max_lanes, asks_group));
        member.path = Path::Greeting { hello: Box::new(hello), open: Vec::new() };
    }

    pub(super) fn greet(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
    ) -> Result<(), Violation> {
        let (index, place) = (self.index, self.place(world));
        loop {
            let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
            let Path::Greeting { hello, open } = &mut member.path else { return Ok(()) };
            if matches!(self.phase, Phase::Leaving(_)) || member.role == Role::Leaves {
                return Ok(());
            }
            let port = port_of(place, open.len(), member.sockets);
            match hello.step(world.net.now) {
                HelloStep::Send(header) => {
                    let mut packet = vec![0xEE; len_of(&header)];
                    hello.fill(&header, &mut packet);
                    world.net.to_aggregator(member.aggregator, (index, port), &packet);
                }
                HelloStep::Wait(until) => {
                    self.turn_by(world, until);
                    return Ok(());
                }
                HelloStep::Open(path) => self.go_on_from(world, id, path)?,
                HelloStep::Failed(_) => {
                    return match member.role {
                        Role::Awaits(stripe) => self.refuse(world, id, stripe),
                        _ => self.end_all(world, None, End::PathClosed, None),
                    };
                }
            }
        }
    }

    /// The path of a shard is open: opens the next, like `open_paths` of the library, or is ready.
    fn go_on_from(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
        path: OpenPath,
    ) -> Result<(), Violation> {
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        let (Path::Greeting { open, .. }, Some(assigned)) = (&mut member.path, &member.assigned)
        else {
            return Ok(());
        };
        let mut open = std::mem::take(open);
        open.push(path);
        if open.len() < assigned.shards.len() {
            let asks_group = open.iter().all(|path| path.hears_group == Some(true));
            let way = (self.index, member.aggregator);
            let hello = hello(world, way, assigned, open.len(), (path.lanes, asks_group));
            member.path = Path::Greeting { hello: Box::new(hello), open };
            return Ok(());
        }
        let role = member.role;
        member.path = Path::Open(open);
        match role {
            Role::Awaits(stripe) => self.ready_for_move(world, id, stripe),
            _ if self.greet_next(world) => {
                self.turn_by(world, world.net.now);
                Ok(())
            }
            _ => self.be_ready(world),
        }
    }

    /// All paths are open: the rank is ready everywhere.
    fn be_ready(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        let lanes = self.members.values().map(Membership::lanes).min().unwrap_or_default();
        let ids: Vec<_> = self.members.keys().copied().collect();
        for id in &ids {
            let met = self.members.get(id).and_then(|member| self.meet(world, member));
            if let Some(member) = self.members.get_mut(id) {
                member.met = met;
                member.taker = member.read_along(self.index);
            }
        }
        for id in ids {
            let Some(member) = self.members.get(&id) else { continue };
            let needs_copies = member.needs_copies();
            self.tell(world, id, session::Event::PathOpen { lanes, needs_copies })?;
        }
        Ok(())
    }

    /// Comes to the other ranks of its host, if sums of theirs count, like `Builder::connect`.
    fn meet(&self, world: &mut Surroundings<'_>, member: &Membership) -> Option<(Shared, usize)> {
        let Assigned { identity, capabilities, .. } = member.assigned.as_ref()?;
        if !capabilities.contains(Capabilities::PARTIAL_SUMS) || identity.tag_len() > 0 {
            return None;
        }
        let (host, group) = (world.scenario.hosts[self.index], self.rank / RANKS_PER_GROUP);
        world.hosts.meet((host, identity.epoch, group), self.index, self.rank)
    }
}

/// The HELLOs by which a worker opens the path of a shard at an aggregator.
fn hello(
    world: &mut Surroundings<'_>,
    (worker, aggregator): (usize, usize),
    assigned: &Assigned,
    shard: usize,
    (lanes, asks_group): (u16, bool),
) -> Hello {
    // The interface's MTU: the path may pass less.
    let mtu = world.net.largest_packet(worker, aggregator) + world.net.rng.below(256) as usize;
    let hello = Hello::new(assigned.identity(shard), assigned.hello_secret, mtu, lanes);
    if asks_group { hello.ask_group() } else { hello }
}
