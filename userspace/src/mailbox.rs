//! The events that a rank has not read yet: a bounded number, however slowly it reads.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use switchml_control::join_event::Event;
use tokio_stream::Stream;

/// Puts events in; the stream ends when it is dropped.
pub struct Sender {
    mail: Arc<Mutex<Mail>>,
    opened: Instant,
}

/// The events, each once.
pub struct Receiver(Arc<Mutex<Mail>>);

#[derive(Default)]
struct Mail {
    /// Unread events. Of events about missing ranks only the last is kept, because it includes the
    /// earlier ones. All others come once in a session, or once for each rank.
    unread: VecDeque<Event>,
    /// Why the stream ends, once it does: `None` if it ends normally.
    end: Option<Option<String>>,
    reader: Option<Waker>,
}

/// An empty mailbox.
pub fn mailbox() -> (Sender, Receiver) {
    let mail = Arc::default();
    (Sender { mail: Arc::clone(&mail), opened: Instant::now() }, Receiver(mail))
}

impl Sender {
    /// How long the mailbox has existed.
    pub fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Adds an event.
    pub fn send(&self, event: Event) {
        let mut mail = lock(&self.mail);
        if matches!((mail.unread.back(), &event), (Some(Event::Waiting(_)), Event::Waiting(_))) {
            mail.unread.pop_back();
        }
        mail.unread.push_back(event);
        mail.wake();
    }
}

impl Sender {
    /// Ends the stream as if its connection broke.
    pub fn break_off(self, why: String) {
        lock(&self.mail).end = Some(Some(why));
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut mail = lock(&self.mail);
        mail.end.get_or_insert_default();
        mail.wake();
    }
}

impl Mail {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl Stream for Receiver {
    /// The last item may be the reason for which the stream broke.
    type Item = Result<Event, String>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut mail = lock(&self.0);
        if let Some(event) = mail.unread.pop_front() {
            return Poll::Ready(Some(Ok(event)));
        }
        match &mut mail.end {
            Some(why) => Poll::Ready(why.take().map(Err)),
            None => {
                mail.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Locks the mailbox, also after a panic: each change of it is atomic.
fn lock(mail: &Mutex<Mail>) -> MutexGuard<'_, Mail> {
    mail.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use switchml_control::{Left, Started, Waiting};
    use tokio_stream::StreamExt;

    fn waiting(rank: u32) -> Event {
        Event::Waiting(Waiting { missing_ranks: vec![rank] })
    }

    #[tokio::test]
    async fn whoever_does_not_read_has_the_last_of_what_is_missing() {
        let (sender, receiver) = mailbox();
        (0..100_000).for_each(|rank| sender.send(waiting(rank)));
        assert_eq!(lock(&sender.mail).unread.len(), 1);
        let further = [
            Event::Started(Started { lanes: 32 }),
            Event::Left(Left { rank: 1 }),
            Event::Left(Left { rank: 2 }),
        ];
        further.iter().for_each(|event| sender.send(event.clone()));
        drop(sender);
        let read: Vec<_> = receiver.map(Result::unwrap).collect().await;
        assert_eq!(read, [&[waiting(99_999)][..], &further].concat());
    }

    #[tokio::test]
    async fn a_reader_that_waits_is_woken() {
        let (sender, mut receiver) = mailbox();
        let reading = tokio::spawn(async move { (receiver.next().await, receiver.next().await) });
        tokio::task::yield_now().await;
        sender.send(waiting(1));
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(reading.await.unwrap(), (Some(Ok(waiting(1))), None));
    }

    #[tokio::test]
    async fn a_stream_that_breaks_says_why_behind_its_events() {
        let (sender, receiver) = mailbox();
        sender.send(waiting(1));
        sender.break_off("the parent is gone".to_owned());
        let read: Vec<_> = receiver.collect().await;
        assert_eq!(read, [Ok(waiting(1)), Err("the parent is gone".to_owned())]);
    }
}
