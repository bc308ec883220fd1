//! A switch that loses each packet for it once (`--drop-rate`, rule 24.15), before it comes again:
//! a packet that was lost leaves no trace.

use crate::p4::{P4Switch, Ports};
use switchml_rack::vectors::{Age, Answer, Counters, Job, Offer, Subject};

/// How such packets are counted.
const LOST: &str = "lost_for_tests";
/// How packets for others than the aggregator are counted, and forged ones.
const OF_OTHERS: [&str; 6] = ["fragment", "ip_options", "ipv6", "not_ours", "spoofed", "vlan"];

/// Such a switch.
pub struct LostFirst<P>(pub P4Switch<P>);

impl<P: Ports> LostFirst<P> {
    fn set_drop_rate(&self, rate: &str) -> Result<(), String> {
        let rate = rate.parse().expect("a rate");
        self.0.data_plane.set_drop_rate(rate).map_err(|error| error.to_string())
    }
}

impl<P: Ports> Subject for LostFirst<P> {
    fn offer(&self) -> Offer {
        self.0.offer()
    }

    fn reset(&mut self) -> Result<(), String> {
        self.0.reset()
    }

    fn open(&mut self, job: &Job) -> Result<(), String> {
        self.0.open(job)
    }

    fn abort(&mut self, job: u16) -> Result<(), String> {
        self.0.abort(job)
    }

    fn close(&mut self, job: u16) -> Result<(), String> {
        self.0.close(job)
    }

    fn age(&mut self, age: &Age) -> Result<(), String> {
        self.0.age(age)
    }

    fn pause(&mut self) -> Result<(), String> {
        self.0.pause()
    }

    /// What is for others than the aggregator is not lost, and does not come again.
    fn send(&mut self, port: u16, frame: &[u8]) -> Result<Option<Answer>, String> {
        let before = self.0.counters()?;
        self.set_drop_rate("1")?;
        let answer = self.0.send(port, frame)?;
        self.set_drop_rate("0")?;
        let mut counted = self.0.counters()?;
        counted.retain(|name, packets| before[name] != *packets);
        let names: Vec<_> = counted.keys().map(String::as_str).collect();
        match (&names[..], answer) {
            ([LOST], None) => self.0.send(port, frame),
            // It was cut, so no table saw it.
            ([], None) => Ok(None),
            ([name], answer) if OF_OTHERS.contains(name) => Ok(answer),
            (_, answer) => Err(format!("not lost: counted as {names:?}, with {answer:?}")),
        }
    }

    /// All except those that were lost.
    fn counters(&mut self) -> Result<Counters, String> {
        let mut counters = self.0.counters()?;
        counters.insert(LOST.to_owned(), 0);
        Ok(counters)
    }
}
