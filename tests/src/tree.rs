//! Aggregators in the hosts of several racks.

use crate::{Aggregator, Binaries, Error, Plane, Racks};

/// The root's aggregator, and the combiners of the racks. They end when this is dropped.
pub struct Tree {
    /// Combiners by rack, the same number in each.
    combiners: Vec<Vec<Aggregator>>,
    root: Aggregator,
    /// The rack of each rank.
    racks: Vec<usize>,
}

impl Tree {
    /// Starts the root's aggregator and one in each rack, which the workers of the rack join.
    pub fn new(binaries: &Binaries, racks: &Racks, plane: Plane) -> Result<Self, Error> {
        Self::with_combiners(binaries, racks, plane, &[&[]])
    }

    /// Starts only the root's aggregator, which the workers of all racks join.
    pub fn without_combiners(
        binaries: &Binaries,
        racks: &Racks,
        plane: Plane,
    ) -> Result<Self, Error> {
        Self::with_combiners(binaries, racks, plane, &[])
    }

    /// Starts the root's aggregator, and in each rack a combiner for each of these sets of further
    /// options.
    pub fn with_combiners(
        binaries: &Binaries,
        racks: &Racks,
        plane: Plane,
        combiners: &[&[&str]],
    ) -> Result<Self, Error> {
        let kind = (plane, racks.mode());
        let (host, address, ports) = (racks.root(), racks.root_address(), racks.root_ports());
        let root = Aggregator::in_host(binaries, host, kind, address, &ports, &[])?;
        let start = |rack: usize, options: &[&str]| {
            let options = [options, &["--parent", root.control()]].concat();
            let (host, address) = (&racks.hosts()[rack], racks.host_address(rack));
            Aggregator::in_host(binaries, host, kind, address, &racks.host_ports(rack), &options)
        };
        let of_rack = |rack| combiners.iter().map(|options| start(rack, options)).collect();
        let combiners = (0..racks.len()).map(of_rack).collect::<Result<_, _>>()?;
        let racks = (0..racks.workers().len()).map(|rank| racks.rack_of(rank)).collect();
        Ok(Self { combiners, root, racks })
    }

    /// Address and port of the control plane that the worker of this rank joins.
    pub fn control(&self, rank: usize) -> &str {
        self.control_of(rank, 0)
    }

    /// Address and port of the control plane of the combiner with this number in the rank's rack,
    /// or of the root if there is none.
    pub fn control_of(&self, rank: usize, combiner: usize) -> &str {
        self.combiners[self.racks[rank]].get(combiner).unwrap_or(&self.root).control()
    }

    /// The root's aggregator.
    pub fn root(&mut self) -> &mut Aggregator {
        &mut self.root
    }

    /// The combiners, by rack.
    pub fn combiners(&mut self) -> &mut [Vec<Aggregator>] {
        &mut self.combiners
    }

    /// Ends them cleanly.
    pub fn stop(self) -> Result<(), Error> {
        self.combiners.into_iter().flatten().try_for_each(Aggregator::stop)?;
        self.root.stop()
    }
}
