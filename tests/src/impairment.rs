//! Bad links: `switchml-impairment` as a process, between the halves of a rack's links.

use crate::{Binaries, Error, Namespace, Process, Rack, Racks, rack::wire_ends};
use serde::Deserialize;
use std::{process::Command, time::Duration};

/// The output of the process once frames pass.
const READY: &str = "ready";
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The faults of frames of the aggregation protocol in one direction of a link, each with its
/// probability from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The frame is lost.
    pub loss: f64,
    /// The frame comes twice.
    pub duplication: f64,
    /// The frame is held back until 1 to `distance` later ones have passed.
    pub reordering: f64,
    /// The farthest that a frame is moved back, in frames; 1 to 1024, only used with `reordering`.
    pub distance: u32,
    /// A bit of the frame's headers is flipped: IP, UDP, or the protocol's.
    pub corruption: f64,
    /// A bit of the frame's payload is flipped.
    pub flips: f64,
}

/// The two directions of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the worker to the switch.
    Up,
    /// From the switch to the worker.
    Down,
}

/// The number of frames of the aggregation protocol that came in, and how often each fault
/// happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct FaultCounts {
    /// Frames that came in.
    pub frames: u64,
    /// Frames lost.
    pub lost: u64,
    /// Frames sent twice.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames with a flipped bit in the headers.
    pub corrupted: u64,
    /// Frames with a flipped bit in the payload.
    pub flipped: u64,
    /// Frames held back and sent by now.
    pub released: u64,
    /// Frames sent at once instead of being held back, because too many were held already.
    pub no_room: u64,
    /// Frames lost, sent once instead of twice, or left unchanged because the kernel refused: 0,
    /// unless something is wrong.
    pub failed: u64,
}

/// The joined wires of a rack. They are separated when this is dropped.
pub struct Impairment {
    process: Process,
}

impl Impairment {
    /// Joins the halves of all links of a rack that was made with
    /// [`RackOptions::wires`](crate::RackOptions::wires); `faults` gives the faults for each rank
    /// and direction. The same seed gives the same faults to the same sequence of frames.
    pub fn in_rack(
        binaries: &Binaries,
        rack: &Rack,
        seed: u64,
        faults: impl Fn(usize, Direction) -> Faults,
    ) -> Result<Self, Error> {
        let wires = rack.wires().ok_or(Error::NoWires)?;
        Self::join(binaries, wires, rack.workers().len(), seed, faults)
    }

    /// Joins the halves of all uplinks of racks that were made with
    /// [`RackOptions::wires`](crate::RackOptions::wires); `faults` gives the faults for each rack
    /// and direction.
    pub fn on_uplinks(
        binaries: &Binaries,
        racks: &Racks,
        seed: u64,
        faults: impl Fn(usize, Direction) -> Faults,
    ) -> Result<Self, Error> {
        let wires = racks.open_wires().ok_or(Error::NoWires)?;
        Self::join(binaries, wires, racks.len(), seed, faults)
    }

    fn join(
        binaries: &Binaries,
        wires: &Namespace,
        links: usize,
        seed: u64,
        faults: impl Fn(usize, Direction) -> Faults,
    ) -> Result<Self, Error> {
        if !binaries.impairment.is_file() {
            return Err(Error::NotBuilt(binaries.impairment.clone()));
        }
        let mut command = Command::new(&binaries.impairment);
        command.args(["--seed", &seed.to_string()]);
        for link in 0..links {
            let (to_worker, to_port) = wire_ends(link);
            command.args([
                "--path",
                &format!("{to_worker}:{to_port}:{}", faults(link, Direction::Up).arguments()),
            ]);
            command.args([
                "--path",
                &format!("{to_port}:{to_worker}:{}", faults(link, Direction::Down).arguments()),
            ]);
        }
        let mut process = wires.spawn("impairment", command)?;
        process.wait_for_line(READY, START_TIMEOUT)?;
        Ok(Self { process })
    }

    /// Separates the links. Returns the counts of each, up and down, by rank.
    pub fn stop(mut self) -> Result<Vec<[FaultCounts; 2]>, Error> {
        let status = self.process.terminate(STOP_TIMEOUT)?;
        let output = self.process.stdout();
        let report = output.lines().find(|line| line.starts_with('['));
        let counts: Option<Vec<FaultCounts>> =
            report.and_then(|report| serde_json::from_str(report).ok());
        let counts = counts
            .ok_or_else(|| self.process.ended("should report its counts".to_owned(), status))?;
        Ok(counts.as_chunks().0.to_vec())
    }
}

impl Faults {
    /// The faults as an argument of the process.
    fn arguments(&self) -> String {
        let Self { loss, duplication, reordering, distance, corruption, flips } = self;
        let distance = (*distance).max(1);
        format!(
            "loss={loss},duplication={duplication},reordering={reordering},distance={distance},corruption={corruption},flips={flips}"
        )
    }
}

impl std::ops::AddAssign for FaultCounts {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.flipped += other.flipped;
        self.released += other.released;
        self.no_room += other.no_room;
        self.failed += other.failed;
    }
}
