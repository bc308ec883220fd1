//! Racks with all methods' ranks in them, as many for each, alive at the same time.

use anyhow::{Context, Result};
use switchml_rack::Shaping;

use super::ground::{Ground, Serving};
use super::kit::Kit;
use super::measured::{Method, Sample};
use super::peers::Programs;
use super::switch;
use super::team::{Team, Work};
use crate::measure::in_turn;

/// The racks, and the teams in them. Teams that are not measured sleep.
pub struct Site {
    // Dropped in this order.
    teams: Vec<(Method, Team)>,
    serving: Vec<(Method, Serving)>,
    grounds: Vec<(Vec<Method>, Ground)>,
}

impl Site {
    /// Builds racks and starts the methods.
    pub fn new(workers: usize, methods: &[Method], kit: &Kit, programs: &Programs) -> Result<Self> {
        let mut site = Self { teams: Vec::new(), serving: Vec::new(), grounds: Vec::new() };
        let mut teams: Vec<Method> = methods.iter().map(|method| method.team()).collect();
        teams.dedup();
        for methods in groups(&teams) {
            let ground = Ground::new(methods[0], workers)?;
            for &method in &methods {
                site.start(method, &ground, kit, programs)
                    .with_context(|| format!("{} with {workers} workers", method.name()))?;
            }
            site.grounds.push((methods, ground));
        }
        // Wait for all ranks: starting ranks would slow down the first measurements.
        for (method, team) in &mut site.teams {
            let name = method.name();
            team.wait().with_context(|| format!("{name} with {workers} workers"))?;
        }
        Ok(site)
    }

    fn start(
        &mut self,
        method: Method,
        ground: &Ground,
        kit: &Kit,
        programs: &Programs,
    ) -> Result<()> {
        let serving = Serving::start(method, ground, &kit.binaries)?;
        let team = Team::start(method, programs, ground, serving.as_ref(), &kit.scratch)?;
        self.teams.push((method, team));
        self.serving.extend(serving.map(|serving| (method, serving)));
        Ok(())
    }

    /// Ends all methods normally.
    pub fn stop(self) -> Result<()> {
        let Self { teams, serving, grounds } = self;
        teams.into_iter().try_for_each(|(_, team)| team.stop())?;
        serving.into_iter().try_for_each(|(_, serving)| serving.stop())?;
        drop(grounds);
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
                let grounds = self.grounds.iter();
                grounds.map(|(_, ground)| ground.shape(rate)).collect::<Result<_, _>>()?
            }
            None => Vec::new(),
        };
        for (i, (work, methods)) in jobs.iter().enumerate() {
            for number in in_turn(methods.len(), repetition) {
                let method = methods[number];
                let mut grounds = self.grounds.iter();
                let ground = grounds.find(|(methods, _)| methods.contains(&method.team()));
                let (_, ground) = ground.context("a method without racks")?;
                let before = ground.carried()?;
                let sample = team(&mut self.teams, method)?.measure(work, method.bits())?;
                let bytes = (work.size * work.calls(method.bits())) as f64;
                let uplink = ground.carried_since(&before)?.map(|way| way.map(|sum| sum / bytes));
                result(i, method, Sample { uplink, ..sample });
            }
        }
        Ok(())
    }

    /// Processor time in seconds that the switch's program takes for one all-reduce; none where the
    /// method has no program. The links are unshaped. The kernel's clock has to run
    /// ([`switch::Clock`]).
    pub fn measure_switch(&mut self, work: &Work, method: Method) -> Result<Option<f64>> {
        if !method.has_program() {
            return Ok(None);
        }
        let before = self.switch_seconds(method)?;
        team(&mut self.teams, method)?.measure(work, method.bits())?;
        let calls = work.calls(method.bits()) as f64;
        Ok(Some((self.switch_seconds(method)? - before) / calls))
    }

    fn switch_seconds(&mut self, method: Method) -> Result<f64> {
        let serving = self.serving.iter_mut().find(|(of, _)| *of == method.team());
        let (_, serving) = serving.context("no aggregator")?;
        serving.processes().into_iter().map(switch::seconds).sum()
    }
}

/// Groups methods that share racks. Methods without a program at the ports share a star, or the
/// racks, so that no program is attached there.
fn groups(methods: &[Method]) -> Vec<Vec<Method>> {
    let is_alone = |method: Method| method.has_program() || method == Method::GlooOnePort;
    let mut groups: Vec<Vec<Method>> = Vec::new();
    for &method in methods {
        let fits = |first: Method| !is_alone(first) && first.racks() == method.racks();
        match groups.iter_mut().find(|group| !is_alone(method) && fits(group[0])) {
            Some(group) => group.push(method),
            None => groups.push(vec![method]),
        }
    }
    groups
}

/// The team whose ranks do this method's work.
fn team(teams: &mut [(Method, Team)], method: Method) -> Result<&mut Team> {
    let team = teams.iter_mut().find(|team| team.0 == method.team());
    let (_, team) = team.with_context(|| format!("{} was not started", method.name()))?;
    Ok(team)
}
