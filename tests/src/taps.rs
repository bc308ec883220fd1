//! Workers whose links end in a virtual machine, which is the switch.

use crate::{Error, MAX_WORKERS, Namespace, Rack, deadline::Deadline};
use std::{path::Path, thread, time::Duration};

/// Time that the machine may take to make its taps, which it does before it boots.
const TAPS_TIMEOUT: Duration = Duration::from_secs(20);

/// N workers, and a namespace for the program that runs the machine. A NIC of the machine is a tap
/// on this side, and each tap becomes the `eth0` of a worker:
///
/// ```text
///   virtual machine             worker i
///    NIC i ─── tap i ─────────── eth0
/// ```
pub struct TapRack {
    machine: Namespace,
    workers: Vec<Namespace>,
}

impl TapRack {
    /// Makes the namespaces.
    pub fn new(workers: usize) -> Result<Self, Error> {
        if !(1..=MAX_WORKERS).contains(&workers) {
            return Err(Error::Workers(workers));
        }
        let machine = Namespace::new("machine")?;
        let workers = (0..workers).map(|rank| Namespace::new(&format!("worker {rank}")));
        Ok(Self { machine, workers: workers.collect::<Result<_, _>>()? })
    }

    /// The namespace of the program that makes the taps, under the names of [`TapRack::tap`].
    pub fn machine(&self) -> &Namespace {
        &self.machine
    }

    /// All workers, by rank.
    pub fn workers(&self) -> &[Namespace] {
        &self.workers
    }

    /// The name of the tap of this rank.
    pub fn tap(rank: usize) -> String {
        format!("tap{rank}")
    }

    /// The MAC that the machine's NIC of this rank is to have.
    pub fn nic_mac(rank: usize) -> String {
        format!("02:00:00:00:01:{:02x}", rank + 1)
    }

    /// Gives each worker its tap, as soon as the machine has made it. The tap goes away with the
    /// machine.
    pub fn join(&self) -> Result<(), Error> {
        for (rank, worker) in self.workers.iter().enumerate() {
            let tap = Self::tap(rank);
            self.wait_for(&tap);
            let mac = format!("02:00:00:00:00:{:02x}", rank + 1);
            let path = worker.path();
            self.machine.tool("ip", &format!("link set {tap} netns {path} name eth0"))?;
            worker.tool("ip", "link set lo up")?;
            worker.tool("ip", &format!("link set eth0 address {mac} up"))?;
            let address = Rack::worker_address(rank);
            worker.tool("ip", &format!("address add {address}/24 dev eth0"))?;
            // RESULTs come as multicast; joining a group needs a route for it.
            worker.tool("ip", "route add 224.0.0.0/4 dev eth0")?;
        }
        Ok(())
    }

    fn wait_for(&self, tap: &str) {
        let deadline = Deadline::after(TAPS_TIMEOUT);
        let interface = format!("/sys/class/net/{tap}");
        while !deadline.left().is_zero() {
            let interface = interface.clone();
            if self.machine.run(move || Path::new(&interface).exists()) {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}
