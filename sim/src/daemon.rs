//! The aggregator: the real control plane over the simulated data plane, and connections to it.

use std::net::Ipv4Addr;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use switchml_control::join_event;
use switchml_protocol::job::Binding;
use switchml_userspace_core::control_plane::{ControlPlane, Io, Timer};
use switchml_userspace_core::data_plane::{Error, JobSpec, Limits};
use switchml_userspace_core::jobs::{Epochs, Job, JobTable, Level, StreamId};
use tracing::{debug, trace};

use crate::data_plane::DataPlane;
use crate::net::{Clock, Connection, Event, Message, Net, News, Violation, binding_of};
use crate::scenario::{Scenario, Time};

/// See the module.
pub struct Daemon {
    control_plane: ControlPlane<Connection>,
    data_plane: DataPlane,
    down: bool,
}

impl Daemon {
    /// A daemon without jobs.
    pub fn new(scenario: &Scenario) -> Self {
        let data_plane = DataPlane::new(scenario);
        Self {
            control_plane: control_plane(data_plane.limits(), scenario.seed),
            data_plane,
            down: false,
        }
    }

    /// No more trouble with jobs that do not open.
    pub fn heal(&mut self) {
        self.data_plane.heal();
    }

    /// Whether nobody answers.
    pub fn is_down(&self) -> bool {
        self.down
    }

    /// Its data plane, to look at.
    pub fn data_plane(&self) -> &DataPlane {
        &self.data_plane
    }

    /// Stops. In good order, it says why to all ranks; otherwise its host is gone.
    pub fn stop(&mut self, net: &mut Net, orderly: bool) {
        debug!("{} the aggregator is gone", Clock(net.now));
        if orderly {
            let (control_plane, io) = &mut self.io(net);
            control_plane.shut_down(io);
        }
        let mut connections: Vec<_> = self.control_plane.streams().map(|(_, to)| *to).collect();
        connections.sort_unstable();
        for connection in connections {
            net.tell_worker(connection, News::Lost);
        }
        self.down = true;
    }

    /// A new daemon in this one's place.
    pub fn start_anew(&mut self, net: &mut Net) {
        debug!("{} another aggregator is there", Clock(net.now));
        self.data_plane.start_anew();
        self.control_plane = control_plane(self.data_plane.limits(), net.rng.any());
        self.down = false;
    }

    fn stream_of(&self, connection: Connection) -> Option<StreamId> {
        let mut streams = self.control_plane.streams();
        streams.find(|(_, to)| **to == connection).map(|(stream, _)| stream)
    }

    fn io<'a>(
        &'a mut self,
        net: &'a mut Net,
    ) -> (&'a mut ControlPlane<Connection>, SimulatedIo<'a>) {
        (&mut self.control_plane, SimulatedIo { net, data_plane: &mut self.data_plane })
    }

    /// A message over a control connection.
    pub fn hear(&mut self, net: &mut Net, connection: Connection, message: Message) {
        trace!("{} connection {connection} -> {message:?}", Clock(net.now));
        if self.down {
            // Connection refused, or reset.
            if !matches!(message, Message::Gone | Message::Silent(_)) {
                net.tell_worker(connection, News::Lost);
            }
            return;
        }
        if let Err(refused) = self.request(net, connection, message) {
            net.tell_worker(connection, News::Refused(refused));
        }
    }

    /// Fails with why it is refused.
    fn request(
        &mut self,
        net: &mut Net,
        connection: Connection,
        message: Message,
    ) -> Result<(), String> {
        let stream = self.stream_of(connection);
        let peer = Ipv4Addr::from(binding_of(net.worker_at(connection), 0).ip).into();
        let (control_plane, io) = &mut self.io(net);
        match message {
            Message::Join(joiner) => {
                control_plane.join(io, &joiner, connection).map_err(|error| error.to_string())?;
            }
            Message::Resume(id) => {
                control_plane
                    .resume(io, id, peer, connection)
                    .map_err(|error| error.to_string())?;
            }
            Message::Gone => {
                if let Some(stream) = stream {
                    control_plane.disconnect(io, stream, Duration::ZERO);
                }
            }
            Message::Silent(time) => {
                if let Some(stream) = stream {
                    control_plane.disconnect(io, stream, Duration::from_nanos(time));
                }
            }
            _ if stream.is_none() => io.net.tell_worker(connection, News::Lost),
            Message::Ready(id, lanes) => {
                control_plane.ready(io, id, lanes.into()).map_err(|error| error.to_string())?;
            }
            // Who reports or leaves does not wait for more than an answer.
            Message::ReportCalls(id, calls, named) => {
                drop(control_plane.report_calls(io, id, calls, &named));
            }
            Message::Leave(id, error, blamed) => {
                drop(control_plane.leave(io, id, &error, &blamed));
            }
        }
        Ok(())
    }

    /// What the control plane has scheduled is due.
    pub fn on_timer(&mut self, net: &mut Net, timer: Timer) {
        let (control_plane, io) = &mut self.io(net);
        control_plane.on_timer(io, timer);
    }

    /// A datagram from `binding`. `header_intact`: whether no more than its lanes and check word may
    /// be other than they were sent.
    pub fn serve(
        &mut self,
        net: &mut Net,
        binding: &Binding,
        packet: &[u8],
        congested: bool,
        header_intact: bool,
    ) -> Result<(), Violation> {
        if self.down {
            return Ok(());
        }
        self.data_plane.serve(net, binding, packet, congested, header_intact)
    }
}

fn control_plane(limits: Limits, seed: u64) -> ControlPlane<Connection> {
    ControlPlane::new(JobTable::new(limits, None, StdRng::seed_from_u64(seed)))
}

/// What the control plane does, in the simulated network.
struct SimulatedIo<'a> {
    net: &'a mut Net,
    data_plane: &'a mut DataPlane,
}

impl Io for SimulatedIo<'_> {
    type Stream = Connection;

    fn open(&mut self, job: &JobSpec) -> Result<(), Error> {
        self.data_plane.open(self.net, job)
    }

    fn start(&mut self, job: u16) -> Result<(), Error> {
        self.data_plane.start(self.net, job);
        Ok(())
    }

    fn abort(&mut self, job: u16) -> Result<(), Error> {
        self.data_plane.abort(job);
        Ok(())
    }

    fn close(&mut self, job: u16) -> Result<(), Error> {
        self.data_plane.close(job);
        Ok(())
    }

    fn binding(&mut self, job: u16, rank: u16) -> Result<Option<Binding>, Error> {
        Ok(self.data_plane.binding(job, rank))
    }

    // This data plane ends with its daemon: nothing is kept.

    fn save(&mut self, _job: &Job) -> Result<(), Error> {
        Ok(())
    }

    fn keep_epochs(&mut self, _epochs: &Epochs) -> Result<(), Error> {
        Ok(())
    }

    fn tell(&mut self, stream: &Connection, event: join_event::Event) {
        self.net.tell_worker(*stream, News::Event(event));
    }

    fn end(&mut self, stream: Connection) {
        self.net.tell_worker(stream, News::Lost);
    }

    fn schedule(&mut self, after: Duration, timer: Timer) {
        self.net.schedule(self.net.now + after.as_nanos() as Time, Event::Timer(timer));
    }

    fn log(&mut self, _level: Level, line: &str) {
        debug!("{} {line}", Clock(self.net.now));
    }
}
