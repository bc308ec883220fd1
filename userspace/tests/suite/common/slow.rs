//! A data plane that takes its time to prepare a number, or to open a job, as a switch does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use switchml_data_plane::software::Software;
use switchml_protocol::bpf_types::fanout::Way;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::outcome::Outcome;
use switchml_userspace_core::data_plane::{DataPlane, Error, JobSpec, Limits, ServesJobs};

/// The software data plane, which does one thing when it is told to.
pub struct Slow {
    inner: Software,
    what: What,
    go: Mutex<Receiver<()>>,
    is_waiting: AtomicBool,
}

/// What it does slowly.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Prepare number 0.
    Prepare,
    /// Open a job.
    Open,
}

impl Slow {
    /// The slow data plane, and a sender that lets it go on.
    pub fn new(inner: Software, what: What) -> (Arc<Self>, Sender<()>) {
        let (go, told) = channel();
        (Arc::new(Self { inner, what, go: told.into(), is_waiting: false.into() }), go)
    }

    fn wait(&self) {
        self.is_waiting.store(true, Ordering::SeqCst);
        self.go.lock().expect("no panic").recv().expect("told to go on");
        self.is_waiting.store(false, Ordering::SeqCst);
    }
}

impl ServesJobs for Slow {
    fn is_prepared(&self, numbers: &[u16]) -> bool {
        self.what != What::Prepare || !numbers.contains(&0)
    }

    fn prepare(&self, _numbers: &[u16]) -> Result<(), Error> {
        self.wait();
        Ok(())
    }

    fn open(&self, job: &JobSpec) -> Result<(), Error> {
        if self.what == What::Open {
            tokio::task::block_in_place(|| self.wait());
        }
        self.inner.open(job)
    }

    fn start(&self, job: u16, ways: &[(u16, Way)]) -> Result<(), Error> {
        self.inner.start(job, ways)
    }

    fn abort(&self, job: u16) -> Result<(), Error> {
        self.inner.abort(job)
    }

    fn close(&self, job: u16) -> Result<(), Error> {
        self.inner.close(job)
    }

    fn binding(&self, job: u16, rank: u16) -> Result<Option<Binding>, Error> {
        self.inner.binding(job, rank)
    }
}

impl DataPlane for Slow {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn attachment(&self) -> String {
        self.inner.attachment()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::SeqCst)
    }

    fn counters(&self) -> Result<[u64; Outcome::COUNT], Error> {
        self.inner.counters()
    }
}
