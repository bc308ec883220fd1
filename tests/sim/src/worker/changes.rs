//! A rank goes on in another job, with other ranks, like the torch backend's `reconfigure`: it
//! leaves its job, and joins the next one (rule 22.18). Here it gives up its job at once where
//! others are left out, also if it has no calls in flight.

use super::{Phase, Worker};
use crate::net::{Event, Violation};
use crate::oracle::End;
use crate::surroundings::Surroundings;
use crate::tally::Fate;

impl Worker {
    /// The number of calls that it has made in its job.
    pub fn made(&self) -> usize {
        match &self.phase {
            Phase::Running(calls) => calls.made(),
            Phase::Rest(Some(End::Finished)) | Phase::Leaving(End::Finished) => usize::MAX,
            _ => 0,
        }
    }

    /// Whether its job has yet to start.
    pub fn is_joining(&self) -> bool {
        matches!(self.phase, Phase::Joining)
    }

    /// Its job ends after so many calls.
    pub fn stop_after(&mut self, calls: usize) {
        self.stop = Some((self.job, calls));
        if let Phase::Running(running) = &mut self.phase {
            running.stop_after(calls);
        }
    }

    /// The process is told in which job it goes on.
    pub fn hear_of_change(
        &mut self,
        world: &mut Surroundings<'_>,
        job: usize,
    ) -> Result<(), Violation> {
        // Those who know of a later one have heard of it first.
        if self.next.unwrap_or(self.job) < job {
            self.next = Some(job);
        }
        self.enter_next(world);
        self.go_on(world)
    }

    /// Leaves its job for the next one, if it is to. Only its own end keeps it from joining.
    pub(super) fn go_on(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        let (Some(next), Phase::Running(calls)) = (self.next, &self.phase) else { return Ok(()) };
        let left_out = world.scenario.left_out(self.job, next);
        if left_out.is_empty() {
            // All ranks leave after the same call.
            return Ok(());
        }
        if calls.are_in_flight() {
            world.net.tally.fate(Fate::CutShort);
        }
        self.end_all(world, None, End::Without(left_out), None)
    }

    /// Joins the next job, if it is to and is in none. Who is dead does so once it is restarted.
    pub(super) fn enter_next(&mut self, world: &mut Surroundings<'_>) {
        let (Some(next), Phase::Rest(end)) = (self.next, &self.phase) else { return };
        let is_dead = *end == Some(End::Killed);
        let places = world.scenario.jobs[next].workers.iter().zip(0..);
        let place = places.into_iter().find(|(worker, _)| **worker == self.index);
        let Some((_, rank)) = place else { return };
        (self.job, self.rank, self.next) = (next, rank, None);
        if !is_dead && !self.starts {
            self.starts = true;
            world.net.schedule(world.net.now, Event::Start(self.index));
        }
    }
}
