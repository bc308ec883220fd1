//! Plays vectors against a data plane.

use super::fields::{difference, headers_len};
use super::{Answer, Counters, Event, Expected, Layer, Step, Subject, Vector};

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
    let allowed = if subject.offer().strict { &step.expected[..1] } else { &step.expected[..] };
    let differs = |expected: &Expected| {
        answer_differs(expected, answer.as_ref(), subject.layer())
            .or_else(|| counter_differs(expected, &counted))
    };
    let differences: Option<Vec<_>> = allowed.iter().map(differs).collect();
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
    let is_right = matches!(counted, [(name, 1)] if *name == expected.counter);
    (!is_right).then(|| format!("counted {counted:?}, not {}", expected.counter))
}

fn answer_differs(expected: &Expected, found: Option<&Answer>, layer: Layer) -> Option<String> {
    let (expected_to, found_to) = (receiver(expected.answer.as_ref()), receiver(found));
    if expected_to != found_to {
        let frame = found.map_or(String::new(), |answer| format!(" ({})", summary(answer.frame())));
        return Some(format!("answer went to {found_to}{frame}, not to {expected_to}"));
    }
    let (expected, found) = (expected.answer.as_ref()?, found?);
    match layer {
        Layer::Frame => difference(expected.frame(), found.frame()),
        Layer::Datagram => difference(&as_received(expected), &as_received(found)),
    }
}

fn receiver(answer: Option<&Answer>) -> String {
    match answer {
        None => "nobody".to_owned(),
        Some(Answer::Passed(_)) => "others, untouched".to_owned(),
        Some(Answer::Port(port, _)) => format!("port {port}"),
        Some(Answer::Group(job, _)) => format!("all of job {job}"),
    }
}

/// The header of the packet in a frame.
fn summary(frame: &[u8]) -> String {
    frame.iter().skip(headers_len(frame)).take(40).map(|byte| format!("{byte:02x}")).collect()
}

/// A frame without the fields that a socket does not show.
fn as_received(answer: &Answer) -> Vec<u8> {
    let mut frame = answer.frame().to_vec();
    let hidden: &[_] = &[0..26, 38..42];
    let address = 30..34;
    let port = 36..38;
    let is_for_all = matches!(answer, Answer::Group(..));
    for range in
        hidden.iter().chain(is_for_all.then_some([address, port].iter()).into_iter().flatten())
    {
        if let Some(bytes) = frame.get_mut(range.clone()) {
            bytes.fill(0);
        }
    }
    frame
}
