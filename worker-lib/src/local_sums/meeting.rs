//! Ranks of one host find each other, without anybody's help: who comes first opens a socket whose
//! name says which session this is, and hands the memory to the others.
//!
//! Such names belong to a network namespace, as addresses do: ranks that meet send from the same
//! place. They belong to no user, so each side asks the kernel who the other is. All ranks of a
//! session have come before it starts, because each tells the aggregator only afterwards that it is
//! ready.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};
use rustix::process::geteuid;
use siphasher::sip::SipHasher24;

use super::segment::{Extent, Segment};

/// Version of the memory's layout. Ranks with different layouts do not meet.
const LAYOUT: u32 = 3;
/// How long a rank waits for the memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// What ranks must have in common to meet: the session, the shared memory and the place in the
/// network.
#[derive(Clone, Debug)]
pub(super) struct Topic {
    pub aggregator: SocketAddr,
    /// The source address of the ranks' packets.
    pub local: IpAddr,
    pub job: u16,
    pub epoch: u32,
    /// The group of ranks: partial sums do not cross groups.
    pub group: u16,
    pub extent: Extent,
}

impl Topic {
    fn name(&self) -> io::Result<unix::SocketAddr> {
        unix::SocketAddr::from_abstract_name(format!("switchml-{:016x}", self.hash()))
    }

    /// The name of the bell of the rank at a place, for a shard.
    pub fn bell(&self, place: usize, shard: usize) -> io::Result<unix::SocketAddr> {
        let hash = self.hash();
        unix::SocketAddr::from_abstract_name(format!("switchml-{hash:016x}-{place}-{shard}"))
    }

    /// The same in all builds of this layout.
    fn hash(&self) -> u64 {
        let Self { aggregator, local, job, epoch, group, extent } = self;
        let Extent { shards, slots, lanes } = extent;
        let numbers = format!("{LAYOUT} {job} {epoch} {group} {shards} {slots} {lanes}");
        let text = format!("{numbers} {aggregator} {local}");
        SipHasher24::new().hash(text.as_bytes())
    }
}

/// A rank at a meeting. The rank that opened the meeting hands out the memory until this is
/// dropped.
pub(super) struct Meeting {
    pub segment: Arc<Segment>,
    host: Option<Host>,
}

impl Meeting {
    /// Meets the ranks of a topic, or opens the meeting if this rank is the first.
    ///
    /// # Errors
    /// When there is no shared memory, or when the rank that has it belongs to another user or is
    /// gone.
    pub fn enter(topic: &Topic) -> io::Result<Self> {
        let (name, begin) = (topic.name()?, Instant::now());
        loop {
            match UnixListener::bind_addr(&name) {
                Ok(listener) => return Self::open(listener, topic.extent),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
            match UnixStream::connect_addr(&name) {
                Ok(stream) => {
                    let segment = Segment::of_other(receive(&stream)?, topic.extent)?;
                    return Ok(Self { segment: Arc::new(segment), host: None });
                }
                // The rank that has the name does not listen yet, or not any more.
                Err(error)
                    if error.kind() == ErrorKind::ConnectionRefused
                        && begin.elapsed() < PATIENCE =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn open(listener: UnixListener, extent: Extent) -> io::Result<Self> {
        let segment = Arc::new(Segment::new(extent)?);
        let host = Host::new(listener, Arc::clone(&segment))?;
        Ok(Self { segment, host: Some(host) })
    }

    /// The memory of the ranks that have met. No further ranks can join.
    pub fn end(self) -> Arc<Segment> {
        drop(self.host);
        self.segment
    }
}

/// Hands out the memory, on a thread of its own.
struct Host {
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    fn new(listener: UnixListener, segment: Arc<Segment>) -> io::Result<Self> {
        let listener = Arc::new(listener);
        let theirs = Arc::clone(&listener);
        let thread = std::thread::Builder::new().name("switchml-host".to_owned());
        let thread = thread.spawn(move || {
            // The loop ends when the listener is shut down.
            while let Ok((stream, _)) = theirs.accept() {
                // A rank that gets nothing reports the error itself.
                let _ = send(&stream, &segment);
            }
        })?;
        Ok(Self { listener, thread: Some(thread) })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if shutdown(&self.listener, Shutdown::Both).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Whether the other end belongs to this user. It may be in a container: then its process has no
/// number here, and the kernel gives 0, which rustix's type cannot hold.
fn is_own(stream: &UnixStream) -> io::Result<bool> {
    Ok(getsockopt(stream, PeerCredentials)?.uid() == geteuid().as_raw())
}

fn send(stream: &UnixStream, segment: &Segment) -> io::Result<()> {
    if !is_own(stream)? {
        return Ok(());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [segment.file()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(stream, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(stream: &UnixStream) -> io::Result<OwnedFd> {
    let refused = || io::Error::other("they belong to another user");
    if !is_own(stream)? {
        return Err(refused());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(stream.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    files.next().ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(epoch: u32) -> Topic {
        let extent = Extent { shards: 1, slots: 2, lanes: 32 };
        let aggregator = SocketAddr::from(([127, 0, 0, 1], 9));
        Topic { aggregator, local: [127, 0, 0, 1].into(), job: 1, epoch, group: 0, extent }
    }

    /// SipHash-2-4 with a key of zeros, by another implementation, of
    /// `3 1 7 0 1 2 32 127.0.0.1:9 127.0.0.1`.
    #[test]
    fn names_are_the_same_in_all_builds() {
        assert_eq!(topic(7).hash(), 0x8e0d_ab3c_e92e_a412);
    }

    #[test]
    fn ranks_of_a_session_meet_and_others_do_not() {
        let epoch = std::process::id();
        let first = Meeting::enter(&topic(epoch)).unwrap();
        let second = Meeting::enter(&topic(epoch)).unwrap();
        let other = Meeting::enter(&topic(epoch.wrapping_add(1 << 30))).unwrap();
        assert_eq!((first.segment.enter(4), second.segment.enter(2)), (Some(0), Some(1)));
        assert_eq!(other.segment.enter(1), Some(0));
        assert_eq!(
            (first.end().ranks(), second.end().ranks()),
            (Some(vec![4, 2]), Some(vec![4, 2]))
        );
    }

    /// Ranks are in different PID namespaces in containers that share the network. Seen from there,
    /// this process has the number 0.
    #[test]
    fn ranks_of_other_pid_namespaces_meet() {
        const OTHER: &str = "SWITCHML_TEST_MEETING_OF";
        const NAME: &str = "local_sums::meeting::tests::ranks_of_other_pid_namespaces_meet";
        if let Ok(epoch) = std::env::var(OTHER) {
            let meeting = Meeting::enter(&topic(epoch.parse().unwrap())).unwrap();
            assert_eq!(meeting.segment.enter(2), Some(1));
            return;
        }
        let elsewhere = |program: &std::path::Path| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--user", "--map-current-user", "--pid", "--fork"]).arg(program);
            command
        };
        if !elsewhere("true".as_ref()).output().is_ok_and(|output| output.status.success()) {
            return switchml_rack::skip(NAME, "no user and PID namespaces");
        }
        let epoch = std::process::id().wrapping_add(1 << 28);
        let first = Meeting::enter(&topic(epoch)).unwrap();
        assert_eq!(first.segment.enter(4), Some(0));
        let mut other = elsewhere(&std::env::current_exe().unwrap());
        other.args(["--exact", NAME]).env(OTHER, epoch.to_string());
        let output = other.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert_eq!(first.end().ranks(), Some(vec![4, 2]));
    }

    #[test]
    fn nothing_is_left_of_a_meeting() {
        let epoch = std::process::id().wrapping_add(1 << 29);
        let first = Meeting::enter(&topic(epoch)).unwrap();
        assert_eq!(first.segment.enter(3), Some(0));
        drop(first);
        assert_eq!(Meeting::enter(&topic(epoch)).unwrap().end().ranks(), Some(vec![]));
    }
}
