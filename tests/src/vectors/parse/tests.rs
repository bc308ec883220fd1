use super::super::{Answer, Copies, Event, Vector};

const VECTOR: &str = "# About it.
guarantee fifo
needs lanes 32
needs ranks 1
needs jobs 8
needs slots 8
needs max
open 7 epoch 0x10 slots 8 aggregator 02:00:00:00:00:fe 10.0.0.254:48864 group 239.1.2.3:50007
  rank 0 secret 0xAB port 3 02:00:00:00:00:01 10.0.0.1:40000 \
key 000102030405060708090a0b0c0d0e0f newcomer

age 7 slot 2 by 0xfffffffe
step one # not two
in port 3
  00 01  # a comment
  0203
out port 3, hello
  04
or none, no_hello
or without macs none, uncounted
counters
  hello 1
";

#[test]
fn a_vector_is_what_its_lines_say() {
    let vector = Vector::parse("name", VECTOR).unwrap();
    assert!(!vector.needs.strict);
    assert_eq!((vector.needs.lanes, vector.needs.ranks), (32, 1));
    assert_eq!((vector.needs.jobs, vector.needs.slots), (8, 8));
    assert_eq!(vector.needs.features, ["max"]);
    let [Event::Open(job), Event::Age(age), Event::Step(step)] = &vector.events[..] else {
        panic!("{:?}", vector.events);
    };
    assert_eq!((job.number, job.epoch, job.slots, job.group.unwrap().port()), (7, 16, 8, 50007));
    assert_eq!(
        (job.members[0].secret, job.members[0].port, job.members[0].newcomer),
        (0xAB, 3, true)
    );
    assert_eq!(job.members[0].key, Some(std::array::from_fn(|i| i as u8)));
    assert_eq!(job.key, None);
    assert_eq!((age.slot, age.by), (2, 0xFFFF_FFFE));
    assert_eq!((step.title.as_str(), step.port, &step.frame[..]), ("one", 3, &[0, 1, 2, 3][..]));
    assert_eq!(step.expected[0].answer, Some(Answer::Port(3, vec![4])));
    assert_eq!((&step.expected[1].answer, step.expected[1].counter.as_str()), (&None, "no_hello"));
    let without: Vec<_> = step.expected.iter().map(|it| it.without.as_deref()).collect();
    assert_eq!(without, [None, None, Some("macs")]);
}

/// Each rank with a queue pair has a frame of its own, the others the group's.
#[test]
fn ranks_have_frames_of_their_own() {
    let text = VECTOR
        .replace("10.0.0.1:40000", "10.0.0.1:4791 queue_pair 0xab9000")
        .replace("out port 3, hello\n", "out ranks 7, hello\nto group\n  01\nto rank 2\n");
    let vector = Vector::parse("name", &text).unwrap();
    let [Event::Open(job), _, Event::Step(step)] = &vector.events[..] else {
        panic!("{:?}", vector.events);
    };
    assert_eq!(job.members[0].queue_pair, Some(0x00AB_9000));
    let copies = Copies { group: Some(vec![1]), ranks: [(2, vec![4])].into() };
    assert_eq!(step.expected[0].answer, Some(Answer::Ranks(7, copies)));
    let other = text.replace("to rank 2", "to nobody");
    let error = Vector::parse("name", &other).unwrap_err().to_string();
    assert_eq!(error, "line 19: nobody where rank is due");
}

#[test]
fn errors_name_the_line() {
    let cases = [
        ("guarantee fifo", "guarantee most", "line 2: guarantee most: there are strict and fifo"),
        (
            "needs lanes 32",
            "needs lanes 0x10000",
            "line 3: 0x10000 is not a number of lanes, or too large",
        ),
        (
            "needs slots 8",
            "needs slots 7",
            "line 21: the jobs need \"needs jobs 8\" and \"needs slots 8\"",
        ),
        (
            "needs jobs 8",
            "needs jobs 7",
            "line 21: the jobs need \"needs jobs 8\" and \"needs slots 8\"",
        ),
        ("  rank 0", "  rank 1", "line 9: rank 1 where rank 0 is due"),
        (
            "0b0c0d0e0f",
            "0b0c0d0e",
            "line 9: 000102030405060708090a0b0c0d0e is not a key of 16 bytes",
        ),
        ("newcomer", "guest", "line 9: guest is one word too many"),
        (
            "by 0xfffffffe",
            "by 3",
            "line 11: a slot ages by an even number of rounds, so that each stays in its set",
        ),
        ("step one", "stop one", "line 12: unknown statement stop"),
        ("  0203", "  020", "line 13: 7 hexadecimal digits follow, which is not a frame"),
        ("  0203", "  02x3", "line 15: 'x' is not a hexadecimal digit"),
        ("out port 3, hello", "out port 3", "line 16: no counter: \"out none, started\""),
        (
            "out port 3, hello",
            "out of port 3, hello",
            "line 16: out of: there are none, passed, port, group and ranks",
        ),
        ("out port 3, hello", "out ranks 7, hello", "line 16: no \"to rank N\" follows"),
        (
            "  hello 1",
            "  hello 2",
            "line 21: the counters are {\"hello\": 2}, but the steps add up to {\"hello\": 1}",
        ),
    ];
    for (right, wrong, error) in cases {
        let text = VECTOR.replace(right, wrong);
        assert_eq!(Vector::parse("name", &text).unwrap_err().to_string(), error);
    }
}
