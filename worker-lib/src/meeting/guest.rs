//! A rank that comes where another one listens.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::message::{Answer, Introduction, receive, send};
use crate::error::Error;
use crate::per_process::{Namespace, namespace};

/// Pause before the place is tried again.
const PAUSE: Duration = Duration::from_millis(50);
/// How much longer than the rank that listens the others wait for the answer: it names the missing.
const MARGIN: Duration = Duration::from_secs(2);

/// The ids of the last meetings that this process has come to, by place in a network namespace.
static LAST: Mutex<Option<HashMap<(Namespace, SocketAddr), String>>> = Mutex::new(None);

/// The id of the last meeting at this place, if there was one.
pub fn last(place: SocketAddr) -> Option<String> {
    LAST.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()?
        .get(&(namespace(), place))
        .cloned()
}

/// Comes to a meeting. Returns the answer, which is [`Answer::Met`] or [`Answer::Refused`].
///
/// # Errors
/// [`Error::Meeting`] if nobody answers in time, or something else does.
pub fn attend(
    place: SocketAddr,
    introduction: &Introduction,
    timeout: Duration,
) -> Result<Answer, Error> {
    let begin = Instant::now();
    loop {
        let left = timeout.saturating_sub(begin.elapsed());
        let why = match ask(place, introduction, left) {
            Ok(Answer::Later) => "its last job has not ended".to_owned(),
            Ok(answer) => {
                if let Answer::Met { id, .. } = &answer {
                    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
                    last.get_or_insert_default().insert((namespace(), place), id.clone());
                }
                return Ok(answer);
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                let why = format!(
                    "another program than rank 0 answers at {place}; set MASTER_PORT to a port \
                     that is free on rank 0's host"
                );
                return Err(Error::Meeting { why });
            }
            Err(error) => error.to_string(),
        };
        if left.is_zero() {
            let why = format!(
                "the rank that listens does not answer at {place}: {why}; start it, and set \
                 MASTER_ADDR and MASTER_PORT, or the unique id, to the same on all ranks"
            );
            return Err(Error::Meeting { why });
        }
        // It may not have started yet.
        thread::sleep(PAUSE);
    }
}

/// One try.
///
/// # Errors
/// Those of the connection; `InvalidData` if what answers is no rank.
pub fn ask(place: SocketAddr, introduction: &Introduction, left: Duration) -> io::Result<Answer> {
    let stream = TcpStream::connect_timeout(&place, left.max(PAUSE))?;
    stream.set_read_timeout(Some(left + MARGIN))?;
    send(&stream, introduction)?;
    receive(&stream)
}
