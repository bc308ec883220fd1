//! The vectors once more at tc ingress, with each run of packets of one rank as one superpacket:
//! the counters must be the same, and the answers equal. Of a superpacket, a test run shows the
//! last answer: to the sender if there is one, otherwise to the group.

use crate::in_kernel::{InKernel, number, ones_complement_sum};
use switchml_rack::vectors::{Answer, Event, Step, Subject, Vector, difference};
use switchml_test_support::frame::FILLER;
use switchml_test_support::kernel::tc::ENVELOPE_LEN;

/// The longest frame that is sent: the kernel makes test runs of a page, and needs part of that
/// itself.
const MAX_FRAME: usize = 3400;
const HEADER_LEN: usize = 32;
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_REDIRECT: u32 = 7;
const KIND: usize = 1;

/// Whether all frames of a vector are whole datagrams, which superpackets can carry.
pub fn can_play(vector: &Vector) -> bool {
    !vector
        .needs
        .features
        .iter()
        .any(|feature| ["frames", "ipv6", "long", "roce", "runts"].contains(&feature.as_str()))
}

/// Plays a vector. Returns how many superpackets of several packets there were.
pub fn play(vector: &Vector, subject: &mut InKernel) -> Result<usize, String> {
    subject.reset()?;
    let mut superpackets = 0;
    let mut events = &vector.events[..];
    while let Some((event, rest)) = events.split_first() {
        let Event::Step(first) = event else {
            control(event, subject)?;
            events = rest;
            continue;
        };
        let run = run_of(first, rest);
        let at = |what| {
            format!("{}, {} packets from \"{}\" on: {what}", vector.name, run.len(), first.title)
        };
        let before = subject.counters()?;
        play_run(&run, subject).map_err(at)?;
        let after = subject.counters()?;
        let mut expected = before;
        for step in &run {
            *expected.entry(step.expected[0].counter.clone()).or_default() += 1;
        }
        if after != expected {
            return Err(at(format!("counters are {after:?}, not {expected:?}")));
        }
        superpackets += usize::from(run.len() > 1);
        events = &events[run.len()..];
    }
    Ok(superpackets)
}

fn control(event: &Event, subject: &mut InKernel) -> Result<(), String> {
    match event {
        Event::Open(job) => subject.open(job),
        Event::Abort(job) => subject.abort(*job),
        Event::Close(job) => subject.close(*job),
        Event::Age(age) => subject.age(age),
        Event::Pause => subject.pause(),
        Event::Step(_) => Ok(()),
    }
}

/// The steps from `first` on that can be one superpacket: packets of one job, from one place, of
/// one size; the last may be shorter.
fn run_of<'a>(first: &'a Step, rest: &'a [Event]) -> Vec<&'a Step> {
    let mut run = vec![first];
    let mut len = first.frame.len();
    for event in rest {
        let Event::Step(step) = event else { break };
        let last = run[run.len() - 1];
        let payload = step.frame.len() - ENVELOPE_LEN;
        len += payload;
        let is_full = last.frame.len() < first.frame.len() || len > MAX_FRAME || payload == 0;
        let fits = step.port == first.port && flow(&step.frame) == flow(&first.frame);
        if is_full || !fits || step.frame.len() > first.frame.len() {
            break;
        }
        run.push(step);
    }
    run
}

/// The fields that are equal in all packets of a superpacket: addresses, type of service, and the
/// job.
fn flow(frame: &[u8]) -> (&[u8], &[u8], Option<&[u8]>) {
    (&frame[..16], &frame[26..38], frame.get(44..46))
}

fn play_run(run: &[&Step], subject: &mut InKernel) -> Result<(), String> {
    let segment_len = run[0].frame.len() - ENVELOPE_LEN;
    if segment_len == 0 {
        // A superpacket has no empty segment.
        return subject.send(run[0].port, &run[0].frame).map(drop);
    }
    let superpacket = join(run);
    let after = subject.run_superpacket(run[0].port, &superpacket, segment_len);
    let answers: Vec<_> = run.iter().map(|step| step.expected[0].answer.as_ref()).collect();
    let is_to_sender = |answer: &&Answer| matches!(answer, Answer::Port(..));
    let last_is_to_sender = answers.iter().flatten().any(is_to_sender);
    let is_shown = |answer: &&Answer| is_to_sender(answer) == last_is_to_sender;
    let Some(shown) = answers.iter().flatten().find(|answer| is_shown(answer)) else {
        return if after.verdict == TC_ACT_SHOT {
            Ok(())
        } else {
            Err(format!("verdict {}", after.verdict))
        };
    };
    if after.verdict != TC_ACT_REDIRECT || after.frame.len() != superpacket.len() {
        return Err(format!(
            "verdict {}, {} bytes of {}",
            after.verdict,
            after.frame.len(),
            superpacket.len()
        ));
    }
    check_envelope(&after.frame, shown.frame())?;
    for (index, (segment, answer)) in
        after.frame[ENVELOPE_LEN..].chunks(segment_len).zip(&answers).enumerate()
    {
        match answer.filter(|answer| is_shown(answer)) {
            Some(answer) => {
                // The segment may be longer than the answer.
                let found = [&answer.frame()[..ENVELOPE_LEN], segment].concat();
                let expected = answer.frame();
                if let Some(what) = difference(expected, &found[..expected.len().min(found.len())])
                {
                    return Err(format!("packet {index}: {what}"));
                }
            }
            None if segment.len() < HEADER_LEN || segment[KIND] == FILLER => {}
            None => {
                return Err(format!("packet {index}: kind {} instead of FILLER", segment[KIND]));
            }
        }
    }
    Ok(())
}

/// The packets behind one envelope, whose lengths and IP checksum fit.
fn join(run: &[&Step]) -> Vec<u8> {
    let mut frame = run[0].frame[..ENVELOPE_LEN].to_vec();
    frame.extend(run.iter().flat_map(|step| &step.frame[ENVELOPE_LEN..]));
    for (offset, value) in [(16, frame.len() - 14), (24, 0), (38, frame.len() - 34)] {
        frame[offset..offset + 2].copy_from_slice(&(value as u16).to_be_bytes());
    }
    let checksum = !ones_complement_sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// Checks the envelope of an answer: it is as long as the superpacket, and its UDP checksum is the
/// sum of the pseudo-header, to be completed when the superpacket is split.
fn check_envelope(found: &[u8], expected: &[u8]) -> Result<(), String> {
    let mut expected = expected[..ENVELOPE_LEN].to_vec();
    for (offset, value) in [(16, found.len() - 14), (24, number(found, 24)), (38, found.len() - 34)]
    {
        expected[offset..offset + 2].copy_from_slice(&(value as u16).to_be_bytes());
    }
    let pseudo_header = [&found[26..34], &[0, found[23]], &found[38..40]].concat();
    expected[40..42].copy_from_slice(&ones_complement_sum(&pseudo_header).to_be_bytes());
    if ones_complement_sum(&found[14..34]) != 0xFFFF {
        return Err("wrong IP checksum".to_owned());
    }
    difference(&expected, &found[..ENVELOPE_LEN]).map_or(Ok(()), Err)
}
