//! Racks of one size with all methods' ranks in them, alive at the same time.

use std::path::Path;

use anyhow::{Context, Result};
use switchml_rack::{Aggregator, Binaries, Mode, Rack, RackOptions, Shaping};

use super::measured::{Method, Sample};
use super::peers::Programs;
use super::switch;
use super::team::{Team, Work};

/// The racks, and the teams in them. Those that are not measured sleep.
pub struct Site {
    // Dropped in this order.
    teams: Vec<(Method, Team)>,
    aggregators: Vec<(Method, Aggregator)>,
    racks: Vec<Rack>,
}

impl Site {
    /// Builds racks and starts the methods.
    ///
    /// Each rack is wired as its methods like it best. With native XDP at the ports, the workers'
    /// offloads are off: it would see checksums that nobody has filled in yet. Everyone else has
    /// them on. Where nothing is to be attached to the ports, nothing is: those who need no
    /// aggregator there share a rack.
    pub fn new(
        workers: usize,
        methods: &[Method],
        binaries: &Binaries,
        programs: &Programs,
        scratch: &Path,
    ) -> Result<Self> {
        let mut site = Self { teams: Vec::new(), aggregators: Vec::new(), racks: Vec::new() };
        let attached = |method: &Method| [Method::Bundle, Method::Native].contains(method);
        let mut teams: Vec<Method> = methods.iter().map(|method| method.team()).collect();
        teams.dedup();
        let (alone, together): (Vec<Method>, Vec<Method>) = teams.iter().partition(|m| attached(m));
        let racks = alone.into_iter().map(|method| vec![method]).chain([together]);
        for methods in racks.filter(|methods| !methods.is_empty()) {
            let mode = if methods == [Method::Native] { Mode::Native } else { Mode::Auto };
            let rack = Rack::new(RackOptions { workers, mode, ..RackOptions::default() })?;
            for method in methods {
                site.start(method, &rack, binaries, programs, scratch)
                    .with_context(|| format!("{} with {workers} workers", method.name()))?;
            }
            site.racks.push(rack);
        }
        Ok(site)
    }

    fn start(
        &mut self,
        method: Method,
        rack: &Rack,
        binaries: &Binaries,
        programs: &Programs,
        scratch: &Path,
    ) -> Result<()> {
        let aggregator = match method {
            Method::Bundle | Method::Native => Some(Aggregator::in_rack(binaries, rack)?),
            Method::Software => Some(Aggregator::software_in_rack(binaries, rack)?),
            _ => None,
        };
        self.teams
            .push((method, Team::start(method, programs, rack, aggregator.as_ref(), scratch)?));
        self.aggregators.extend(aggregator.map(|aggregator| (method, aggregator)));
        Ok(())
    }

    /// Ends all methods in good order.
    ///
    /// # Errors
    ///
    /// A process that does not end, or fails, with its last lines.
    pub fn stop(self) -> Result<()> {
        let Self { teams, racks, aggregators } = self;
        teams.into_iter().try_for_each(|(_, team)| team.stop())?;
        aggregators.into_iter().try_for_each(|(_, aggregator)| aggregator.stop())?;
        drop(racks);
        Ok(())
    }

    /// Measures each piece of work once with each of its methods, over links of `rate` bits per
    /// second. The methods that are named first differ from repetition to repetition, so that none
    /// always follows the same other.
    pub fn measure(
        &mut self,
        rate: Option<u64>,
        jobs: &[(Work, Vec<Method>)],
        repetition: usize,
        mut result: impl FnMut(usize, Method, Sample),
    ) -> Result<()> {
        let _shaped: Vec<Shaping> = match rate {
            Some(rate) => {
                self.racks.iter().map(|rack| Shaping::new(rack, rate)).collect::<Result<_, _>>()?
            }
            None => Vec::new(),
        };
        for (i, (work, methods)) in jobs.iter().enumerate() {
            for turn in 0..methods.len() {
                let method = methods[(turn + repetition) % methods.len()];
                result(i, method, team(&mut self.teams, method)?.measure(work, method.bits())?);
            }
        }
        Ok(())
    }

    /// Processor time in seconds that the switch's program takes for one all-reduce; none where the
    /// method has no program. The links are unshaped. The kernel's clock has to run
    /// ([`switch::Clock`]).
    pub fn measure_switch(&mut self, work: &Work, method: Method) -> Result<Option<f64>> {
        if ![Method::Bundle, Method::Native].contains(&method.team()) {
            return Ok(None);
        }
        let before = self.switch_seconds(method)?;
        team(&mut self.teams, method)?.measure(work, method.bits())?;
        let calls = work.calls(method.bits()) as f64;
        Ok(Some((self.switch_seconds(method)? - before) / calls))
    }

    fn switch_seconds(&mut self, method: Method) -> Result<f64> {
        let aggregator = self.aggregators.iter_mut().find(|(of, _)| *of == method.team());
        let (_, aggregator) = aggregator.context("no aggregator")?;
        switch::seconds(aggregator.process().id())
    }
}

/// Those whose ranks do this method's work.
fn team(teams: &mut [(Method, Team)], method: Method) -> Result<&mut Team> {
    let team = teams.iter_mut().find(|team| team.0 == method.team());
    let (_, team) = team.with_context(|| format!("{} was not started", method.name()))?;
    Ok(team)
}
