//! Plays vectors against a data plane.

use super::fields::{difference, packet_in};
use super::{Answer, Copies, Counters, Event, Expected, Layer, Step, Subject, Vector};

/// What a vector has in place of a counter if none moves: the packet was dropped before that.
const UNCOUNTED: &str = "uncounted";

/// The results of all vectors.
#[derive(Debug, Default)]
pub struct Played {
    /// Number of vectors that passed.
    pub passed: usize,
    /// Vectors that failed: vector, step and field.
    pub failed: Vec<String>,
    /// Vectors that were not played, and what the data plane does not offer.
    pub left_out: Vec<(String, String)>,
}

impl Played {
    /// Prints the vectors that were not played.
    ///
    /// # Panics
    ///
    /// If a vector failed, with what failed.
    pub fn conclude(&self, subject: &str) {
        for (vector, lacks) in &self.left_out {
            println!("{subject}: {vector} not played, it needs {lacks}");
        }
        println!("{subject}: {} vectors passed, {} failed", self.passed, self.failed.len());
        assert!(self.failed.is_empty(), "{subject}: {}", self.failed.join("\n"));
    }
}

/// Plays each vector that the subject offers enough for.
pub fn play_all(vectors: &[Vector], subject: &mut impl Subject) -> Played {
    let mut played = Played::default();
    for vector in vectors {
        if let Some(lacks) = subject.offer().lacks(&vector.needs) {
            played.left_out.push((vector.name.clone(), lacks));
            continue;
        }
        match play(vector, subject) {
            Ok(()) => played.passed += 1,
            Err(failure) => played.failed.push(failure),
        }
    }
    played
}

/// Plays a vector.
pub fn play(vector: &Vector, subject: &mut impl Subject) -> Result<(), String> {
    let begin = subject.reset().and_then(|()| subject.counters());
    let mut before = begin.map_err(|error| format!("{}: {error}", vector.name))?;
    for (number, event) in (1..).zip(&vector.events) {
        let at = |what: String| match event {
            Event::Step(step) => {
                format!("{}, event {number} ({}): {what}", vector.name, step.title)
            }
            _ => format!("{}, event {number}: {what}", vector.name),
        };
        let done = match event {
            Event::Open(job) => subject.open(job),
            Event::Abort(job) => subject.abort(*job),
            Event::Close(job) => subject.close(*job),
            Event::Age(age) => subject.age(age),
            Event::Pause => subject.pause(),
            Event::Step(step) => play_step(step, &before, subject),
        };
        done.map_err(at)?;
        // The subject's own packets for opening a job may be counted, too.
        before = subject.counters().map_err(at)?;
    }
    Ok(())
}

fn play_step(step: &Step, before: &Counters, subject: &mut impl Subject) -> Result<(), String> {
    let answer = subject.send(step.port, &step.frame)?;
    let counted = moved(before, &subject.counters()?);
    let offer = subject.offer();
    let further = if offer.strict { &[] } else { &step.expected[1..] };
    let offers = |feature: &String| offer.features.contains(feature);
    let further = further.iter().filter(|expected| !expected.without.as_ref().is_some_and(offers));
    let allowed = step.expected[..1].iter().chain(further);
    let differs = |expected: &Expected| {
        answer_differs(expected, answer.as_ref(), subject.layer())
            .or_else(|| counter_differs(expected, &counted))
    };
    let differences: Option<Vec<_>> = allowed.map(differs).collect();
    differences.map_or(Ok(()), |all| Err(all.join("; and otherwise: ")))
}

/// The growth of the counters.
fn moved(before: &Counters, after: &Counters) -> Vec<(String, u64)> {
    let count = |counters: &Counters, name: &String| counters.get(name).copied().unwrap_or(0);
    let deltas =
        after.iter().map(|(name, count_after)| (name.clone(), count_after - count(before, name)));
    deltas.filter(|(_, delta)| *delta > 0).collect()
}

fn counter_differs(expected: &Expected, counted: &[(String, u64)]) -> Option<String> {
    let is_right = match counted {
        [] => expected.counter == UNCOUNTED,
        [(name, 1)] => *name == expected.counter,
        _ => false,
    };
    (!is_right).then(|| format!("counted {counted:?}, not {}", expected.counter))
}

fn answer_differs(expected: &Expected, found: Option<&Answer>, layer: Layer) -> Option<String> {
    if let (Some(Answer::Ranks(job, copies)), Some(found)) = (&expected.answer, found) {
        return copies_differ(*job, copies, found, layer);
    }
    let (expected_to, found_to) = (receiver(expected.answer.as_ref()), receiver(found));
    if expected_to != found_to {
        let frame = found.map_or(String::new(), |answer| format!(" ({})", summary(answer.frame())));
        return Some(format!("answer went to {found_to}{frame}, not to {expected_to}"));
    }
    let (expected, found) = (expected.answer.as_ref()?, found?);
    match layer {
        Layer::Frame => difference(expected.frame(), found.frame()),
        Layer::Datagram => {
            let received =
                |answer: &Answer| as_received(answer.frame(), matches!(answer, Answer::Group(..)));
            difference(&received(expected), &received(found))
        }
    }
}

/// A subject that shows nothing of copies gives the group's frame, also where there is none: then
/// its packet counts.
fn copies_differ(job: u16, expected: &Copies, found: &Answer, layer: Layer) -> Option<String> {
    let found = match found {
        Answer::Ranks(to, found) if *to == job => found,
        Answer::Group(to, frame) if *to == job => {
            return match &expected.group {
                Some(group) => difference(group, frame),
                None => {
                    let copy = expected.ranks.values().next()?;
                    let differs = packet_in(copy) != packet_in(frame);
                    differs.then(|| format!("the packet is {}", summary(frame)))
                }
            };
        }
        other => {
            let frame = summary(other.frame());
            return Some(format!("answer went to {} ({frame})", receiver(Some(other))));
        }
    };
    let shown = |copies: &Copies| -> Vec<_> {
        let all = copies.group.iter().map(|frame| ("the group".to_owned(), frame, true));
        let each = copies.ranks.iter().map(|(rank, frame)| (format!("rank {rank}"), frame, false));
        all.chain(each)
            .map(|(who, frame, is_for_all)| match layer {
                Layer::Frame => (who, frame.clone()),
                Layer::Datagram => (who, as_received(frame, is_for_all)),
            })
            .collect()
    };
    let (expected, found) = (shown(expected), shown(found));
    let names = |shown: &[(String, Vec<u8>)]| -> Vec<_> {
        shown.iter().map(|(who, _)| who.clone()).collect()
    };
    if names(&expected) != names(&found) {
        return Some(format!("it went to {:?}, not to {:?}", names(&found), names(&expected)));
    }
    let pairs = expected.iter().zip(&found);
    let mut differences = pairs.filter_map(|((who, expected), (_, found))| {
        difference(expected, found).map(|what| format!("to {who}: {what}"))
    });
    differences.next()
}

fn receiver(answer: Option<&Answer>) -> String {
    match answer {
        None => "nobody".to_owned(),
        Some(Answer::Passed(_)) => "others, untouched".to_owned(),
        Some(Answer::Port(port, _)) => format!("port {port}"),
        Some(Answer::Group(job, _) | Answer::Ranks(job, _)) => format!("all of job {job}"),
    }
}

/// The header of the packet in a frame.
fn summary(frame: &[u8]) -> String {
    packet_in(frame).iter().take(40).map(|byte| format!("{byte:02x}")).collect()
}

/// A frame without the fields that a socket does not show.
fn as_received(frame: &[u8], is_for_all: bool) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let hidden: &[_] = &[0..26, 38..42];
    let address = 30..34;
    let port = 36..38;
    for range in
        hidden.iter().chain(is_for_all.then_some([address, port].iter()).into_iter().flatten())
    {
        if let Some(bytes) = frame.get_mut(range.clone()) {
            bytes.fill(0);
        }
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{Age, Job, Offer};

    /// Sends nothing, and counts nothing, unless it is told what.
    struct Silent {
        offer: Offer,
        counts: Option<&'static str>,
        counters: Counters,
    }

    impl Subject for Silent {
        fn offer(&self) -> Offer {
            self.offer.clone()
        }

        fn reset(&mut self) -> Result<(), String> {
            Ok(())
        }

        fn open(&mut self, _: &Job) -> Result<(), String> {
            Ok(())
        }

        fn abort(&mut self, _: u16) -> Result<(), String> {
            Ok(())
        }

        fn close(&mut self, _: u16) -> Result<(), String> {
            Ok(())
        }

        fn age(&mut self, _: &Age) -> Result<(), String> {
            Ok(())
        }

        fn send(&mut self, _: u16, _: &[u8]) -> Result<Option<Answer>, String> {
            if let Some(name) = self.counts {
                *self.counters.entry(name.to_owned()).or_default() += 1;
            }
            Ok(None)
        }

        fn counters(&mut self) -> Result<Counters, String> {
            Ok(self.counters.clone())
        }
    }

    /// Further answers are not for who keeps the specification, nor for who has the feature that
    /// they are without.
    #[test]
    fn an_answer_without_a_feature_is_not_for_who_has_it() {
        let step = |counter: &str, without: Option<&str>| Expected {
            answer: None,
            counter: counter.to_owned(),
            without: without.map(str::to_owned),
        };
        let expected = vec![step("truncated", None), step(UNCOUNTED, Some("lengths"))];
        let step = Step { title: String::new(), port: 1, frame: Vec::new(), expected };
        let passes = |strict: bool, feature: &str, counts: Option<&'static str>| {
            let offer = Offer { strict, features: vec![feature.to_owned()], ..Offer::default() };
            let mut subject = Silent { offer, counts, counters: Counters::new() };
            play_step(&step, &Counters::new(), &mut subject).is_ok()
        };
        for (strict, feature) in [(true, "max"), (false, "max"), (false, "lengths")] {
            assert!(passes(strict, feature, Some("truncated")), "{strict}, {feature}");
            assert!(!passes(strict, feature, Some("started")), "{strict}, {feature}");
            let may_be_silent = !strict && feature == "max";
            assert_eq!(passes(strict, feature, None), may_be_silent, "{strict}, {feature}");
        }
    }
}
