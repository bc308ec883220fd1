//! The event stream of a rank.

use std::pin::Pin;
use std::task::{Context, Poll};

use switchml_control::JoinEvent;
use switchml_control::join_event::Event;
use switchml_userspace_core::jobs::StreamId;
use tokio_stream::Stream;
use tonic::Status;

use super::{Service, State, strangers, turns};
use crate::incoming::Peer;
use crate::mailbox::Receiver;
use crate::standstill::Standstill;
use crate::traces::RankTrace;

/// A rank's events; its end tells the control plane that the rank is gone.
pub struct EventStream {
    pub(super) events: Receiver,
    pub(super) id: StreamId,
    pub(super) peer: Peer,
    pub(super) standstill: Standstill,
    /// Whether the client was told that the stream is over.
    pub(super) is_over: bool,
    pub(super) trace: RankTrace,
    pub(super) service: Service,
}

impl Stream for EventStream {
    type Item = Result<JoinEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = Pin::new(&mut self.events).poll_next(context);
        if let Poll::Ready(Some(Ok(event))) = &event {
            self.trace.hear(event);
        }
        if event.is_pending() && self.standstill.is_over(context) {
            self.is_over = true;
            return Poll::Ready(None);
        }
        self.is_over |= matches!(event, Poll::Ready(None));
        event.map(|event| event.map(message))
    }
}

/// An event as a message. A broken stream gives UNAVAILABLE: ranks that can will resume.
pub(crate) fn message(event: Result<Event, String>) -> Result<JoinEvent, Status> {
    match event {
        Ok(event) => Ok(JoinEvent { event: Some(event) }),
        Err(why) => Err(Status::unavailable(why)),
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        // When the client learns that the job is gone, its spans have ended already.
        self.trace = RankTrace::default();
        let from = self.peer.ip();
        if let Some(from) = from.filter(|_| !self.is_over) {
            strangers::taken_back(&self.service.guard, &self.peer, from);
        }
        let (id, silence) = (self.id, self.standstill.silence());
        turns::when_free(&self.service.state, move |State { control_plane, io, .. }| {
            control_plane.disconnect(&mut io.caused_from(from), id, silence);
        });
    }
}
