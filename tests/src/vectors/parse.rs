//! Vectors as text.

use super::{Age, Answer, Copies, Counters, Event, Expected, Job, Member, Parent, Step, Vector};
use std::{
    collections::BTreeMap, iter::Peekable, net::SocketAddrV4, num::ParseIntError, slice::Iter,
    str::FromStr,
};

/// A line that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line}: {what}")]
pub struct ParseError {
    /// The line's number, from 1.
    pub line: usize,
    /// What is wrong with the line.
    pub what: String,
}

/// A line that is not empty, without its comment.
struct Line<'a> {
    number: usize,
    /// Belongs to the line above.
    indented: bool,
    text: &'a str,
}

impl Line<'_> {
    fn error(&self, what: impl Into<String>) -> ParseError {
        ParseError { line: self.number, what: what.into() }
    }
}

type Lines<'a> = Peekable<Iter<'a, Line<'a>>>;

impl Vector {
    /// Reads a vector.
    pub fn parse(name: &str, text: &str) -> Result<Self, ParseError> {
        let lines: Vec<_> = (1..)
            .zip(text.lines())
            .filter_map(|(number, line)| significant(number, line))
            .collect();
        let mut vector = Self {
            name: name.to_owned(),
            needs: super::Offer::default(),
            events: vec![],
            counters: Counters::new(),
        };
        let mut rest = lines.iter().peekable();
        while let Some(line) = rest.next() {
            vector.take(line, &mut rest)?;
        }
        vector.check(lines.last())?;
        Ok(vector)
    }

    /// Reads a line, and the lines that belong to it.
    fn take(&mut self, line: &Line<'_>, rest: &mut Lines<'_>) -> Result<(), ParseError> {
        let mut words = Words::new(line);
        match words.word("a statement")? {
            "guarantee" => {
                self.needs.strict = match words.word("strict or fifo")? {
                    "strict" => true,
                    "fifo" => false,
                    other => {
                        return Err(
                            line.error(format!("guarantee {other}: there are strict and fifo"))
                        );
                    }
                }
            }
            "needs" => match words.word("what is needed")? {
                "lanes" => self.needs.lanes = words.number("a number of lanes")?,
                "ranks" => self.needs.ranks = words.number("a number of ranks")?,
                "jobs" => self.needs.jobs = words.number("a number of jobs")?,
                "slots" => self.needs.slots = words.number("a number of slots")?,
                feature => self.needs.features.push(feature.to_owned()),
            },
            "open" => self.events.push(Event::Open(job(&mut words, rest)?)),
            "abort" => self.events.push(Event::Abort(words.number("a job")?)),
            "close" => self.events.push(Event::Close(words.number("a job")?)),
            "age" => {
                let age = Age {
                    job: words.number("a job")?,
                    slot: words.after("slot")?,
                    by: words.after("by")?,
                };
                if age.by % 2 == 1 {
                    return Err(line.error(
                        "a slot ages by an even number of rounds, so that each stays in its set",
                    ));
                }
                self.events.push(Event::Age(age));
            }
            "step" => {
                let title = line.text.strip_prefix("step").unwrap_or_default().trim().to_owned();
                self.events.push(Event::Step(step(title, line, rest)?));
                return Ok(());
            }
            "pause" => self.events.push(Event::Pause),
            "counters" => self.counters = counters(rest)?,
            other => return Err(line.error(format!("unknown statement {other}"))),
        }
        words.end()
    }

    /// Checks the sums of the counters, which the file states twice: at each step and at the end.
    fn check(&self, last: Option<&Line<'_>>) -> Result<(), ParseError> {
        let mut sums = Counters::new();
        for event in &self.events {
            if let Event::Step(step) = event {
                *sums.entry(step.expected[0].counter.clone()).or_default() += 1;
            }
        }
        let line = last.map_or(1, |line| line.number);
        if sums != self.counters {
            let what =
                format!("the counters are {:?}, but the steps add up to {sums:?}", self.counters);
            return Err(ParseError { line, what });
        }
        if self.needs.lanes == 0 || self.needs.ranks == 0 {
            return Err(ParseError {
                line,
                what: "no \"needs lanes\" or \"needs ranks\"".to_owned(),
            });
        }
        let (jobs, slots) = self.room();
        if (self.needs.jobs, self.needs.slots) != (jobs, slots) {
            let what = format!("the jobs need \"needs jobs {jobs}\" and \"needs slots {slots}\"");
            return Err(ParseError { line, what });
        }
        Ok(())
    }

    /// The job numbers and slots that the jobs take. One that is opened again has the slots that it
    /// had.
    fn room(&self) -> (u16, u32) {
        let mut slots = BTreeMap::new();
        for event in &self.events {
            if let Event::Open(job) = event {
                let most: &mut u32 = slots.entry(job.number).or_default();
                *most = job.slots.max(*most);
            }
        }
        (slots.keys().next_back().map_or(0, |number| number + 1), slots.values().sum())
    }
}

fn significant(number: usize, line: &str) -> Option<Line<'_>> {
    let code = line.split('#').next().unwrap_or_default();
    let text = code.trim();
    (!text.is_empty()).then(|| Line { number, indented: code.starts_with(' '), text })
}

fn job(words: &mut Words<'_>, rest: &mut Lines<'_>) -> Result<Job, ParseError> {
    let mut job = Job {
        number: words.number("a job")?,
        epoch: words.after("epoch")?,
        slots: words.after("slots")?,
        mac: words.keyword("aggregator").and_then(|()| words.mac())?,
        aggregator: words.address()?,
        group: words.keyword("group").and_then(|()| words.group())?,
        key: words.key()?,
        parent: None,
        members: vec![],
    };
    if let Some(line) = rest.next_if(|line| line.indented && line.text.starts_with("parent ")) {
        let mut words = Words::new(line);
        words.keyword("parent")?;
        job.parent = Some(Parent {
            port: words.after("port")?,
            mac: words.mac()?,
            address: words.address()?,
        });
        words.end()?;
    }
    while let Some(line) = rest.next_if(|line| line.indented) {
        let mut words = Words::new(line);
        let rank: u16 = words.after("rank")?;
        let due = job.members.last().map_or(0, |last| last.rank + 1);
        let is_due = rank == due || job.parent.is_some() && rank > due;
        if !is_due {
            return Err(line.error(format!("rank {rank} where rank {due} is due")));
        }
        job.members.push(Member {
            rank,
            secret: words.after("secret")?,
            port: words.after("port")?,
            mac: words.mac()?,
            address: words.address()?,
            queue_pair: words.queue_pair()?,
            key: words.key()?,
            newcomer: words.is_next("newcomer"),
        });
        words.end()?;
    }
    Ok(job)
}

fn step(title: String, line: &Line<'_>, rest: &mut Lines<'_>) -> Result<Step, ParseError> {
    let Some(line) = rest.next_if(|next| next.text.starts_with("in ")) else {
        return Err(line.error("a step begins with \"in port N\""));
    };
    let mut words = Words::new(line);
    words.keyword("in")?;
    let port = words.after("port")?;
    words.end()?;
    let frame = bytes(line, rest)?;
    let mut expected = vec![];
    while let Some(line) =
        rest.next_if(|next| next.text.starts_with(if expected.is_empty() { "out " } else { "or " }))
    {
        expected.push(alternative(line, &frame, rest)?);
    }
    if expected.is_empty() {
        return Err(line.error("a step has an \"out\""));
    }
    Ok(Step { title, port, frame, expected })
}

fn alternative(
    line: &Line<'_>,
    frame: &[u8],
    rest: &mut Lines<'_>,
) -> Result<Expected, ParseError> {
    let Some((to, counter)) = line.text.split_once(", ") else {
        return Err(line.error("no counter: \"out none, started\""));
    };
    let line_to = Line { number: line.number, indented: false, text: to };
    let mut words = Words::new(&line_to);
    let is_further = words.word("out or or")? == "or";
    let without = if is_further && words.is_next("without") {
        Some(words.word("a feature")?.to_owned())
    } else {
        None
    };
    let answer = match words.word("none, passed, port or group")? {
        "none" => None,
        "passed" => Some(Answer::Passed(frame.to_vec())),
        "port" => Some(Answer::Port(words.number("a port")?, bytes(line, rest)?)),
        "group" => Some(Answer::Group(words.number("a job")?, bytes(line, rest)?)),
        "ranks" => Some(Answer::Ranks(words.number("a job")?, copies(line, rest)?)),
        other => {
            let known = "none, passed, port, group and ranks";
            return Err(line.error(format!("out {other}: there are {known}")));
        }
    };
    words.end()?;
    Ok(Expected { answer, counter: counter.to_owned(), without })
}

/// The frames that follow, each with its receiver.
fn copies(line: &Line<'_>, rest: &mut Lines<'_>) -> Result<Copies, ParseError> {
    let mut copies = Copies::default();
    while let Some(line) = rest.next_if(|next| next.text.starts_with("to ")) {
        let mut words = Words::new(line);
        words.keyword("to")?;
        if words.is_next("group") {
            copies.group = Some(bytes(line, rest)?);
        } else {
            copies.ranks.insert(words.after("rank")?, bytes(line, rest)?);
        }
        words.end()?;
    }
    if copies.ranks.is_empty() {
        return Err(line.error("no \"to rank N\" follows"));
    }
    Ok(copies)
}

/// The indented lines of hexadecimal digits that follow.
fn bytes(line: &Line<'_>, rest: &mut Lines<'_>) -> Result<Vec<u8>, ParseError> {
    let mut digits = Vec::new();
    while let Some(line) = rest.next_if(|line| line.indented) {
        for digit in line.text.chars().filter(|character| *character != ' ') {
            let value = digit
                .to_digit(16)
                .ok_or_else(|| line.error(format!("{digit:?} is not a hexadecimal digit")))?;
            digits.push(value as u8);
        }
    }
    if digits.is_empty() || digits.len() % 2 == 1 {
        return Err(
            line.error(format!("{} hexadecimal digits follow, which is not a frame", digits.len()))
        );
    }
    Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn counters(rest: &mut Lines<'_>) -> Result<Counters, ParseError> {
    let mut counters = Counters::new();
    while let Some(line) = rest.next_if(|line| line.indented) {
        let mut words = Words::new(line);
        counters.insert(words.word("an outcome")?.to_owned(), words.number("a count")?);
        words.end()?;
    }
    Ok(counters)
}

/// The words of a line.
struct Words<'a> {
    line: &'a Line<'a>,
    words: Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    fn new(line: &'a Line<'a>) -> Self {
        Self { line, words: line.text.split_whitespace().peekable() }
    }

    fn word(&mut self, what: &str) -> Result<&'a str, ParseError> {
        self.words.next().ok_or_else(|| self.line.error(format!("{what} is missing")))
    }

    fn keyword(&mut self, keyword: &str) -> Result<(), ParseError> {
        let word = self.word(keyword)?;
        if word == keyword {
            Ok(())
        } else {
            Err(self.line.error(format!("{word} where {keyword} is due")))
        }
    }

    fn is_next(&mut self, keyword: &str) -> bool {
        self.words.next_if_eq(&keyword).is_some()
    }

    /// The number behind a keyword.
    fn after<T: TryFrom<u64>>(&mut self, keyword: &str) -> Result<T, ParseError> {
        self.keyword(keyword)?;
        self.number(keyword)
    }

    /// A number, decimal or, behind 0x, hexadecimal.
    fn number<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T, ParseError> {
        let word = self.word(what)?;
        let number: Result<u64, ParseIntError> = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => word.parse(),
        };
        let number = number.ok().and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.line.error(format!("{word} is not {what}, or too large")))
    }

    fn address<T: FromStr>(&mut self) -> Result<T, ParseError> {
        let word = self.word("an address and port")?;
        word.parse().map_err(|_| self.line.error(format!("{word} is not an address and port")))
    }

    fn group(&mut self) -> Result<Option<SocketAddrV4>, ParseError> {
        if self.is_next("none") { Ok(None) } else { self.address().map(Some) }
    }

    /// The number behind `queue_pair`, if that is next.
    fn queue_pair(&mut self) -> Result<Option<u32>, ParseError> {
        if self.is_next("queue_pair") { self.number("a queue pair").map(Some) } else { Ok(None) }
    }

    /// Behind `key`, 16 bytes.
    fn key(&mut self) -> Result<Option<[u8; 16]>, ParseError> {
        if !self.is_next("key") {
            return Ok(None);
        }
        let word = self.word("a key")?;
        let key = u128::from_str_radix(word, 16).ok().filter(|_| word.len() == 32);
        let key = key.ok_or_else(|| self.line.error(format!("{word} is not a key of 16 bytes")))?;
        Ok(Some(key.to_be_bytes()))
    }

    fn mac(&mut self) -> Result<[u8; 6], ParseError> {
        let word = self.word("a MAC")?;
        let parts: Option<Vec<u8>> =
            word.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
        let mac = parts.and_then(|parts| parts.try_into().ok());
        mac.ok_or_else(|| self.line.error(format!("{word} is not a MAC")))
    }

    fn end(&mut self) -> Result<(), ParseError> {
        match self.words.next() {
            None => Ok(()),
            Some(word) => Err(self.line.error(format!("{word} is one word too many"))),
        }
    }
}

#[cfg(test)]
mod tests;
