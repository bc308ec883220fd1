//! A step as a file, in the format of SwitchML's `dnn_benchmark`: a line for each layer, in the
//! order of the forward pass.
//!
//! ```text
//! layer_index, numel, forward_pass_ns, backward_pass_ns
//! 0,524288,5000,5000
//! ```

use std::fmt::Write as _;
use std::time::Duration;

use crate::{Layer, Step};

const HEADER: &str = "layer_index,numel,forward_pass_ns,backward_pass_ns";
/// More than any machine holds, and few enough for sums of bytes to fit.
const MOST_ELEMENTS: u64 = 1 << 40;
/// An hour.
const MOST_TIME: u64 = 3600 * 1_000_000_000;

/// Why a file is no step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The first line is another one.
    #[error("line 1 is {0:?}; {HEADER:?} is needed")]
    Header(String),
    /// A line is not a layer.
    #[error(
        "line {line} is {text:?}; a name, elements (up to 2^40) and two times in ns (up to an \
         hour), with commas between, are needed"
    )]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is there.
        text: String,
    },
    /// There is nothing to add up.
    #[error("no line has elements; at least one gradient is needed")]
    Empty,
}

/// Reads a step.
///
/// # Errors
/// The first line that is wrong.
pub fn parse(text: &str) -> Result<Step, Error> {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    if header.replace(' ', "") != HEADER {
        return Err(Error::Header(shortened(header)));
    }
    let mut layers = Vec::new();
    for (number, line) in lines.enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = || Error::Line { line: number + 2, text: shortened(line) };
        layers.push(layer(line).ok_or_else(wrong)?);
    }
    let step = Step { layers };
    if step.elements() == 0 { Err(Error::Empty) } else { Ok(step) }
}

fn layer(line: &str) -> Option<Layer> {
    let [name, elements, forward, backward] =
        line.split(',').map(str::trim).collect::<Vec<_>>().try_into().ok()?;
    let number = |text: &str, most| text.parse::<u64>().ok().filter(|number| *number <= most);
    let time = |text| number(text, MOST_TIME).map(Duration::from_nanos);
    Some(Layer {
        name: name.to_owned(),
        elements: number(elements, MOST_ELEMENTS)? as usize,
        forward: time(forward)?,
        backward: time(backward)?,
    })
}

/// What of a line fits an error, which is one line.
fn shortened(line: &str) -> String {
    line.chars().take(60).collect()
}

/// Writes a step.
pub fn write(step: &Step) -> String {
    let mut text = format!("{HEADER}\n");
    for Layer { name, elements, forward, backward } in &step.layers {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name},{elements},{},{}", forward.as_nanos(), backward.as_nanos());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let text = "layer_index,numel,forward_pass_ns,backward_pass_ns\n\
                    conv1.weight,9408,1000,2000\nhead,0,30,60\n";
        let step = parse(text).unwrap();
        assert_eq!(step.layers[0].name, "conv1.weight");
        assert_eq!((step.elements(), step.compute().as_nanos()), (9408, 3090));
        assert_eq!(write(&step), text);
        // As SwitchML writes its header.
        let theirs = "layer_index, numel, forward_pass_ns, backward_pass_ns\n0,524288,5000,5000\n";
        assert_eq!(parse(theirs).unwrap().elements(), 524_288);
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        let complaint = |lines: &str| {
            let text = format!("{HEADER}\n{lines}");
            parse(&text).unwrap_err().to_string()
        };
        let line_3 = "line 3 is \"b,x,1,1\"; a name, elements (up to 2^40) and two times in ns (up \
                      to an hour), with commas between, are needed";
        assert_eq!(complaint("a,1,1,1\nb,x,1,1\n"), line_3);
        for wrong in
            ["a,1,1", "a,1,1,1,1", "a,-1,1,1", "a,1,1,3600000000001", "a,1099511627777,1,1"]
        {
            assert!(complaint(wrong).starts_with("line 2 is "), "{wrong}");
        }
        assert_eq!(complaint("a,0,1,1"), "no line has elements; at least one gradient is needed");
        assert_eq!(complaint("\n"), "no line has elements; at least one gradient is needed");
        assert_eq!(
            parse("numel\n1").unwrap_err().to_string(),
            format!("line 1 is \"numel\"; {HEADER:?} is needed")
        );
        assert!(parse("").is_err());
    }
}
