//! Carries out the proxy's effects through an [`Io`], the daemon's or the simulator's.

use std::time::Duration;

use switchml_control::LeaveRequest;
use switchml_control::join_event::Event;

use super::{Effect, Proxy, Timer};
use crate::data_plane::{Error, ServesJobs};
use crate::jobs::{Level, StreamId};

/// The outside world of a combiner's control plane: streams, data plane, timers, log.
pub trait Io {
    /// The type of the data plane.
    type DataPlane: ServesJobs + ?Sized;

    /// The data plane, which serves the jobs.
    fn data_plane(&self) -> &Self::DataPlane;
    /// Sends an event to below.
    fn tell(&mut self, stream: StreamId, event: Event);
    /// Ends a stream to below; with a reason, as if its connection broke.
    fn end(&mut self, stream: StreamId, broken: Option<String>);
    /// Sends a request to the parent, by the connection of this stream, if there is one.
    fn leave(&mut self, stream: StreamId, request: LeaveRequest);
    /// Ends the stream to the parent that belongs to this one, after its last request.
    fn hang_up(&mut self, stream: StreamId);
    /// Calls [`on_timer`](Proxy::on_timer) with `timer` after this time.
    fn schedule(&mut self, after: Duration, timer: Timer);
    /// Logs a line.
    fn log(&mut self, level: Level, line: &str);
}

/// Carries out the effects of an event, which concerns the stream `of`, if it concerns one.
pub fn perform(proxy: &mut Proxy, io: &mut impl Io, of: Option<StreamId>, effects: Vec<Effect>) {
    for effect in effects {
        let Err(error) = perform_one(io, effect) else { continue };
        let error = error.to_string();
        io.log(Level::Error, &error);
        if let Some(stream) = of {
            // The remaining effects are news of a job that has failed.
            let instead = proxy.fail(stream, &error);
            return perform(proxy, io, None, instead);
        }
    }
}

fn perform_one(io: &mut impl Io, effect: Effect) -> Result<(), Error> {
    match effect {
        Effect::Open(spec) => io.data_plane().open(&spec)?,
        Effect::Admit(shard, rank, secret) => io.data_plane().admit(shard, rank, secret)?,
        Effect::Start(shard, ways) => io.data_plane().start(shard, &ways)?,
        Effect::Close(shard) => io.data_plane().close(shard)?,
        Effect::Tell(stream, event) => io.tell(stream, event),
        Effect::End(stream) => io.end(stream, None),
        Effect::Break(stream, why) => io.end(stream, Some(why)),
        Effect::Lose(stream, request) => {
            io.leave(stream, request);
            io.hang_up(stream);
        }
        Effect::HangUp(stream) => io.hang_up(stream),
        Effect::Schedule(after, timer) => io.schedule(after, timer),
        Effect::Log(level, line) => io.log(level, &line),
    }
    Ok(())
}

/// Calls [`Proxy::on_timer`] with the ranks that have said HELLO in all shards.
pub fn on_timer(proxy: &mut Proxy, io: &mut impl Io, timer: Timer) {
    let (Timer::Look(number, _) | Timer::Forget(number, _)) = timer;
    let bound: Vec<u16> = match proxy.ranks(number) {
        None => return,
        Some((shards, ranks)) => {
            let is_bound = |shard: &u16, rank| {
                io.data_plane().binding(*shard, rank).is_ok_and(|binding| binding.is_some())
            };
            ranks.filter(|rank| shards.iter().all(|shard| is_bound(shard, *rank))).collect()
        }
    };
    let effects = proxy.on_timer(timer, &bound);
    perform(proxy, io, None, effects);
}
