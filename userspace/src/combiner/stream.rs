//! The event streams of ranks below.

use std::pin::Pin;
use std::task::{Context, Poll};

use switchml_control::JoinEvent;
use switchml_userspace_core::jobs::StreamId;
use switchml_userspace_core::proxy;
use tokio_stream::Stream;
use tonic::Status;

use super::{CombinerService, State};
use crate::mailbox::Receiver;
use crate::service::event_stream::message;
use crate::service::turns;
use crate::standstill::Standstill;

/// A rank's events; its end tells the proxy that the rank is gone.
pub struct BelowStream {
    pub(super) events: Receiver,
    pub(super) id: StreamId,
    pub(super) standstill: Standstill,
    pub(super) service: CombinerService,
}

impl Stream for BelowStream {
    type Item = Result<JoinEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = Pin::new(&mut self.events).poll_next(context);
        if event.is_pending() && self.standstill.is_over(context) {
            return Poll::Ready(None);
        }
        event.map(|event| event.map(message))
    }
}

impl Drop for BelowStream {
    fn drop(&mut self) {
        let (id, silence) = (self.id, self.standstill.silence());
        turns::when_free(&self.service.state, move |State { proxy, io }| {
            io.streams.remove(&id);
            let effects = proxy.disconnect(id, silence);
            proxy::perform(proxy, io, None, effects);
        });
    }
}
