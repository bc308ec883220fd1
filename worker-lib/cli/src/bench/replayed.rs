//! The results of a replayed training step: text and JSON are two views of them.

use std::fmt;

use serde::Serialize;
use switchml_pattern::Tested;
use switchml_step::{buckets, timeline};
use switchml_worker::Reduction;

use crate::Failure;
use crate::step::Chosen;

/// What was replayed, and how long it took.
#[derive(Serialize)]
pub struct Replayed {
    version: &'static str,
    /// The step, in words.
    step: String,
    world_size: u32,
    #[serde(rename = "type")]
    dtype: &'static str,
    redop: &'static str,
    gradients: usize,
    /// Bytes of all gradients.
    bytes: usize,
    buckets: usize,
    /// Time of computing alone.
    compute_ms: f64,
    /// Times of steps on the slowest rank.
    pub step_ms: Vec<f64>,
    /// The same with no computing.
    pub communication_ms: Vec<f64>,
    /// Share of the communication that computing hid, by the medians.
    hidden: f64,
    /// Wrong elements of all ranks; none when nothing was checked.
    out_of_bounds: Option<u64>,
    /// Whether two ranks' results were not the same bits.
    differing: bool,
}

impl Replayed {
    /// A report without times yet.
    pub fn new<T: Tested>(chosen: &Chosen, world_size: u32, op: Reduction) -> Self {
        let Chosen { title, step } = chosen;
        Self {
            version: env!("CARGO_PKG_VERSION"),
            step: title.clone(),
            world_size,
            dtype: T::NCCL_NAME,
            redop: op.name(),
            gradients: step.ready().len(),
            bytes: step.elements() * size_of::<T>(),
            buckets: buckets::of(step, size_of::<T>()).len(),
            compute_ms: 1e3 * step.compute().as_secs_f64(),
            step_ms: Vec::new(),
            communication_ms: Vec::new(),
            hidden: 0.0,
            out_of_bounds: None,
            differing: false,
        }
    }

    /// Adds the outcome of a step that was checked.
    pub fn add_check(&mut self, (wrong, differ): (u64, bool)) {
        self.out_of_bounds = Some(self.out_of_bounds.unwrap_or_default() + wrong);
        self.differing |= differ;
    }

    /// Draws the conclusion of the times, of which there is one at least.
    pub fn conclude(&mut self) {
        let [_, step, _] = quartiles(&self.step_ms);
        let [_, communication, _] = quartiles(&self.communication_ms);
        self.hidden = timeline::hidden(step, self.compute_ms, communication);
    }

    pub fn to_json(&self) -> String {
        // Reports have only strings, numbers and lists of these, which JSON can always represent.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// # Errors
    ///
    /// [`Failure::Wrong`] when elements are wrong, or when the ranks' bits differ.
    pub fn verdict(&self) -> Result<(), Failure> {
        match self.out_of_bounds.unwrap_or_default() {
            0 if self.differing => Err(Failure::Wrong("the ranks' bits differ".to_owned())),
            0 => Ok(()),
            wrong => Err(Failure::Wrong(format!("{wrong} elements are wrong"))),
        }
    }
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, world_size, gradients, bytes, buckets, dtype, redop, .. } = self;
        writeln!(f, "# Training step: {step}")?;
        writeln!(
            f,
            "# {world_size} ranks, {gradients} gradients of {bytes} bytes in {buckets} buckets, \
             {dtype}, {redop}; times in ms: median (quartiles) of {} steps",
            self.step_ms.len()
        )?;
        writeln!(f, "computing alone        {:.1}", self.compute_ms)?;
        writeln!(f, "communication alone    {}", Times(&self.communication_ms))?;
        writeln!(f, "step                   {}", Times(&self.step_ms))?;
        writeln!(f, "communication hidden   {:.0} %", 100.0 * self.hidden)?;
        let verdict = if self.verdict().is_ok() { "OK" } else { "FAILED" };
        match self.out_of_bounds {
            Some(wrong) => write!(f, "# Out of bounds values : {wrong} {verdict}"),
            None => write!(f, "# Out of bounds values : not checked"),
        }
    }
}

struct Times<'a>(&'a [f64]);

impl fmt::Display for Times<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, median, high] = quartiles(self.0);
        write!(f, "{median:.1} ({low:.1}-{high:.1})")
    }
}

/// Median and quartiles of at least one number, interpolated between two.
fn quartiles(numbers: &[f64]) -> [f64; 3] {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    [0.25, 0.5, 0.75].map(|share| {
        let place = share * (sorted.len() - 1) as f64;
        let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        below + (above - below) * place.fract()
    })
}

#[cfg(test)]
mod tests {
    use switchml_step::file;

    use super::*;

    #[test]
    fn the_conclusion_is_of_medians() {
        let text = "layer_index,numel,forward_pass_ns,backward_pass_ns\n\
                    a,1000,20000000,80000000\n";
        let chosen = Chosen { title: "t".to_owned(), step: file::parse(text).unwrap() };
        let mut report = Replayed::new::<f32>(&chosen, 2, Reduction::SUM);
        report.step_ms = vec![110.0, 500.0, 100.0, 120.0];
        report.communication_ms = vec![50.0, 50.0, 50.0, 50.0];
        // The median is 115: 35 of 50 ms were hidden.
        report.conclude();
        report.add_check((0, false));
        let text = report.to_string();
        assert!(text.contains("step                   115.0 (107.5-215.0)"), "{text}");
        assert!(text.contains("communication hidden   70 %\n"), "{text}");
        assert!(text.ends_with("# Out of bounds values : 0 OK"), "{text}");
        report.add_check((3, false));
        assert_eq!(report.verdict().unwrap_err().to_string(), "3 elements are wrong");
    }
}
