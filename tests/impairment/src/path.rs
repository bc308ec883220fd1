//! One direction of a link, as given on the command line.

use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail, ensure};
use impairment_bpf::{MAX_DISTANCE, Thresholds};

/// The interfaces of a direction, and its faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Interface where frames come in.
    pub from: String,
    /// Interface where frames leave.
    pub to: String,
    pub faults: Thresholds,
}

impl Path {
    /// The index of `from` in this network namespace.
    pub fn ingress(&self) -> Result<u32> {
        index(&self.from)
    }

    /// The index of `to` in this network namespace.
    pub fn egress(&self) -> Result<u32> {
        index(&self.to)
    }
}

fn index(interface: &str) -> Result<u32> {
    let path = format!("/sys/class/net/{interface}/ifindex");
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("no interface {interface:?} here"))?;
    Ok(text.trim().parse()?)
}

impl FromStr for Path {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.splitn(3, ':');
        let (Some(from), Some(to)) = (parts.next(), parts.next()) else {
            bail!("{text:?} is not FROM:TO[:FAULT=VALUE,...]");
        };
        let mut faults = Thresholds { distance: 1, ..Thresholds::default() };
        for fault in parts.next().unwrap_or_default().split(',').filter(|fault| !fault.is_empty()) {
            let (name, value) =
                fault.split_once('=').with_context(|| format!("{fault:?} is not FAULT=VALUE"))?;
            set(&mut faults, name, value)?;
        }
        Ok(Self { from: from.to_owned(), to: to.to_owned(), faults })
    }
}

fn set(faults: &mut Thresholds, name: &str, value: &str) -> Result<()> {
    let field = match name {
        "loss" => &mut faults.loss,
        "duplication" => &mut faults.duplication,
        "reordering" => &mut faults.reordering,
        "corruption" => &mut faults.corruption,
        "flips" => &mut faults.flips,
        "distance" => {
            faults.distance = value
                .parse()
                .ok()
                .filter(|distance| (1..=MAX_DISTANCE).contains(distance))
                .ok_or_else(|| {
                    anyhow!("distance is {value:?}; 1 to {MAX_DISTANCE} frames are allowed")
                })?;
            return Ok(());
        }
        _ => bail!(
            "no fault {name:?}; loss, duplication, reordering, distance, corruption and flips are \
             known"
        ),
    };
    let probability: f64 =
        value.parse().ok().filter(|number| (0.0..=1.0).contains(number)).unwrap_or(f64::NAN);
    ensure!(!probability.is_nan(), "{name} is {value:?}; a probability from 0 to 1 is allowed");
    // The cast saturates: 2^32 becomes the largest u32.
    *field = (probability * 2f64.powi(32)) as u32;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_faults() {
        let path: Path = "a:b".parse().unwrap();
        let none = Thresholds { distance: 1, ..Thresholds::default() };
        assert_eq!(path, Path { from: "a".into(), to: "b".into(), faults: none });
        let path: Path = "a:b:loss=0.25,reordering=1,distance=7".parse().unwrap();
        let faults = Thresholds { loss: 1 << 30, reordering: u32::MAX, distance: 7, ..none };
        assert_eq!(path.faults, faults);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, complaint) in [
            ("a", "\"a\" is not FROM:TO[:FAULT=VALUE,...]"),
            ("a:b:loss", "\"loss\" is not FAULT=VALUE"),
            ("a:b:loss=2", "loss is \"2\"; a probability from 0 to 1 is allowed"),
            ("a:b:flips=x", "flips is \"x\"; a probability from 0 to 1 is allowed"),
            ("a:b:distance=0", "distance is \"0\"; 1 to 1024 frames are allowed"),
            (
                "a:b:rain=1",
                "no fault \"rain\"; loss, duplication, reordering, distance, corruption and flips \
                 are known",
            ),
        ] {
            assert_eq!(text.parse::<Path>().unwrap_err().to_string(), complaint);
        }
    }
}
