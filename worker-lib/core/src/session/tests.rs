use proptest::prelude::*;

use super::*;

const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const LANES: u16 = 352;

/// A session, and the time.
struct Rank {
    session: Session,
    now: u64,
}

impl Rank {
    fn new() -> Self {
        Self { session: Session::new(0, JOIN_TIMEOUT), now: 0 }
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.session.next_action()).collect()
    }

    /// The actions after an event.
    fn on(&mut self, event: Event) -> Vec<Action> {
        self.session.handle(self.now, event);
        self.actions()
    }

    fn hear(&mut self, news: News) -> Vec<Action> {
        self.on(Event::Heard(news))
    }

    fn answer(&mut self, answer: Answer) -> Vec<Action> {
        self.on(Event::Answered(answer))
    }

    fn fail(&mut self, failure: Failure, call: Option<u64>) -> Vec<Action> {
        self.on(Event::Failed { failure, call })
    }

    fn lose(&mut self) -> Vec<Action> {
        self.on(Event::Lost("reset".to_owned()))
    }

    /// The actions at the deadline, which is `wait` from now.
    fn after(&mut self, wait: u64) -> Vec<Action> {
        assert_eq!(self.session.deadline(), Some(self.now + wait));
        self.session.on_timer(self.now + wait - 1);
        assert_eq!(self.actions(), [], "before it is time");
        self.now += wait;
        self.session.on_timer(self.now);
        self.actions()
    }

    fn joining() -> Self {
        let mut rank = Self::new();
        assert_eq!(rank.actions(), [Action::Connect]);
        assert_eq!(rank.on(Event::Connected), [send(Request::Join)]);
        assert_eq!(rank.answer(Answer::Done), []);
        assert_eq!(rank.hear(News::Waiting(vec![1, 2])), []);
        rank
    }

    fn opening(durable: bool) -> Self {
        let mut rank = Self::joining();
        assert_eq!(rank.hear(News::Assigned { durable }), [Action::OpenPath]);
        assert_eq!(rank.session.deadline(), None);
        rank
    }

    fn ready() -> Self {
        Self::opening(false).get_ready()
    }

    fn get_ready(mut self) -> Self {
        let ready = Request::Ready { lanes: LANES, needs_copies: false };
        assert_eq!(self.on(Event::PathOpen { lanes: LANES, needs_copies: false }), [send(ready)]);
        assert_eq!(self.answer(Answer::Done), []);
        self
    }

    fn running(durable: bool) -> Self {
        let mut rank = Self::opening(durable).get_ready();
        assert_eq!(rank.hear(News::Started { lanes: 320 }), [Action::Start { lanes: 320 }]);
        assert_eq!(rank.session.deadline(), None);
        assert!(rank.session.is_watched());
        rank
    }
}

fn send(request: Request) -> Action {
    Action::Send(request)
}

fn ends(ending: Ending) -> [Action; 1] {
    [Action::End(ending)]
}

fn goodbye(error: &str) -> Goodbye {
    Goodbye { error: error.to_owned(), ranks: vec![3], lost_aggregator: false }
}

fn aborted() -> News {
    News::Aborted { reason: "rank 1 is gone".to_owned(), ranks: vec![1], calls: Vec::new() }
}

fn is_aborted() -> [Action; 1] {
    ends(Ending::Aborted { reason: "rank 1 is gone".to_owned(), ranks: vec![1] })
}

fn mismatch() -> Failure {
    Failure::Mismatch { first: 2, dissenter: 0, collective: 9, is_certain: true }
}

fn is_lost() -> [Action; 1] {
    ends(Ending::Lost("reset".to_owned()))
}

#[test]
fn a_rank_joins_runs_and_leaves() {
    let mut rank = Rank::running(false);
    assert_eq!(rank.hear(News::Left(5)), []);
    assert_eq!(rank.session.departed(), [5].into());
    let leaves = send(Request::Leave(Goodbye::default()));
    assert_eq!(rank.on(Event::Leave(Goodbye::default())), [leaves]);
    assert_eq!(rank.hear(aborted()), [], "it does not matter any more");
    assert_eq!(rank.answer(Answer::Done), ends(Ending::Left));
    assert_eq!(rank.hear(aborted()), []);
    assert_eq!(rank.session.deadline(), None);
}

#[test]
fn a_goodbye_takes_a_second_at_most() {
    let leaves = [send(Request::Leave(goodbye("out of paper")))];
    for end in [Event::Answered(Answer::Refused(String::new())), Event::Lost(String::new())] {
        let mut rank = Rank::running(false);
        assert_eq!(rank.on(Event::Leave(goodbye("out of paper"))), leaves);
        assert_eq!(rank.on(end), ends(Ending::Left));
    }
    let mut rank = Rank::running(false);
    assert_eq!(rank.on(Event::Leave(goodbye("out of paper"))), leaves);
    assert_eq!(rank.after(SECOND), ends(Ending::Left));
}

#[test]
fn a_goodbye_does_not_wait_for_other_answers() {
    let mut rank = Rank::running(false);
    assert_eq!(rank.hear(News::CallsWanted).len(), 1);
    assert_eq!(rank.hear(News::CallsWanted), [], "one after the other");
    assert_eq!(rank.on(Event::Leave(goodbye("")),), [send(Request::Leave(goodbye("")))]);
    assert_eq!(rank.answer(Answer::Done), ends(Ending::Left));
}

#[test]
fn who_leaves_before_there_is_a_job_says_nothing() {
    assert_eq!(Rank::joining().on(Event::Leave(goodbye(""))), ends(Ending::Left));
    let mut rank = Rank::new();
    rank.actions();
    assert_eq!(rank.on(Event::Leave(goodbye(""))), ends(Ending::Left));
}

#[test]
fn who_cannot_open_its_path_leaves() {
    let mut rank = Rank::opening(false);
    let closed = goodbye("the data path is closed");
    assert_eq!(rank.on(Event::Leave(closed.clone())), [send(Request::Leave(closed))]);
    assert_eq!(rank.answer(Answer::Done), ends(Ending::Left));
}

#[test]
fn nobody_to_join() {
    let mut rank = Rank::new();
    rank.actions();
    let why = "connection refused".to_owned();
    assert_eq!(rank.on(Event::Unreachable(why.clone())), ends(Ending::Unreachable(why)));

    let mut rank = Rank::new();
    rank.actions();
    let silent = "silent for 60 s".to_owned();
    assert_eq!(rank.after(60 * SECOND), ends(Ending::Unreachable(silent)));

    let mut rank = Rank::new();
    rank.actions();
    rank.on(Event::Connected);
    assert_eq!(rank.after(60 * SECOND), ends(Ending::Lost("no answer for 60 s".to_owned())));

    let mut rank = Rank::new();
    rank.actions();
    rank.on(Event::Connected);
    let why = "rank 1 is taken".to_owned();
    assert_eq!(rank.answer(Answer::Refused(why.clone())), ends(Ending::Refused(why)));
}

/// Many may join at once: the aggregator is busy with others then, and not gone.
#[test]
fn a_rank_is_as_patient_with_a_queue_as_with_other_ranks() {
    let mut rank = Rank::new();
    rank.actions();
    rank.on(Event::Connected);
    rank.now = 59 * SECOND;
    rank.session.on_timer(rank.now);
    assert_eq!(rank.answer(Answer::Done), []);
    assert_eq!(rank.hear(News::Assigned { durable: false }), [Action::OpenPath]);
    let ready = Request::Ready { lanes: LANES, needs_copies: false };
    assert_eq!(rank.on(Event::PathOpen { lanes: LANES, needs_copies: false }), [send(ready)]);
    rank.now += 59 * SECOND;
    rank.session.on_timer(rank.now);
    assert_eq!(rank.actions(), []);
    assert_eq!(rank.answer(Answer::Done), []);
    assert_eq!(rank.hear(News::Started { lanes: 320 }), [Action::Start { lanes: 320 }]);
}

/// The session would wait for nothing any more.
#[test]
fn an_answer_to_what_was_not_asked_ends_the_session() {
    let mut rank = Rank::running(true);
    assert_eq!(rank.lose(), [Action::Connect]);
    assert_eq!(rank.on(Event::Connected), [send(Request::Resume)]);
    assert!(matches!(
        rank.answer(Answer::Unready(vec![1]))[..],
        [Action::End(Ending::Nonsense(_))]
    ));
}

/// Rule 23.8: events that came while the rank was frozen count, however late it is.
#[test]
fn a_rank_that_stood_still_hears_what_came_meanwhile() {
    let mut rank = Rank::opening(false);
    rank.on(Event::PathOpen { lanes: LANES, needs_copies: false });
    rank.now = 63 * SECOND;
    rank.session.on_timer(rank.now);
    assert_eq!(rank.actions(), [], "nothing is over yet");
    assert_eq!(rank.answer(Answer::Done), []);
    assert_eq!(rank.hear(News::Started { lanes: 320 }), [Action::Start { lanes: 320 }]);
    assert_eq!(rank.lose(), [Action::Connect]);
    assert_eq!(rank.on(Event::Connected), [send(Request::Resume)]);
    assert_eq!(rank.answer(Answer::Done), []);
    assert_eq!(rank.hear(aborted()), is_aborted());

    let mut rank = Rank::opening(false);
    rank.on(Event::PathOpen { lanes: LANES, needs_copies: false });
    rank.now = 63 * SECOND;
    rank.session.on_timer(rank.now);
    assert_eq!(rank.after(SECOND), ends(Ending::Lost("no answer for 60 s".to_owned())));

    let mut rank = Rank::running(false);
    rank.lose();
    rank.now = 3 * SECOND;
    rank.session.on_timer(rank.now);
    assert_eq!(rank.after(SECOND), is_lost());
}

#[test]
fn missing_ranks_are_named() {
    let mut rank = Rank::joining();
    rank.now = 2 * SECOND;
    rank.hear(News::Waiting(vec![2]));
    assert_eq!(rank.after(58 * SECOND), ends(Ending::Missing(vec![2])));
}

/// A rank that gives up just before is missing then, too.
#[test]
fn ranks_that_were_there_are_named_only_if_all_were() {
    let after = |told: &[&[u16]]| {
        let mut rank = Rank::joining();
        for missing in told {
            rank.hear(News::Waiting(missing.to_vec()));
        }
        assert_eq!(rank.session.missing(), &[2]);
        rank.after(60 * SECOND)
    };
    assert_eq!(after(&[&[1, 2, 3], &[2, 3], &[2], &[1, 2]]), ends(Ending::Missing(vec![2])));
    assert_eq!(after(&[&[1, 2], &[1], &[2]]), ends(Ending::Missing(vec![2])));
}

#[test]
fn ranks_that_are_not_ready_are_named() {
    let mut rank = Rank::ready();
    assert_eq!(rank.after(60 * SECOND), [send(Request::Unready)]);
    // The goodbye has an error: the job may have started meanwhile, and then a goodbye without one
    // would only mean that the rank makes no more calls.
    let error = "the job did not start within 60 s".to_owned();
    let goodbye = Goodbye { error, ranks: vec![1, 4], lost_aggregator: false };
    let leaves = [send(Request::Leave(goodbye))];
    assert_eq!(rank.answer(Answer::Unready(vec![1, 4])), leaves);
    assert_eq!(rank.answer(Answer::Done), ends(Ending::NotReady(vec![1, 4])));

    let mut rank = Rank::ready();
    rank.after(60 * SECOND);
    let started = [Action::Start { lanes: LANES }];
    assert_eq!(rank.hear(News::Started { lanes: LANES }), started, "it may still start");
    assert_eq!(rank.answer(Answer::Unready(vec![])), []);

    let mut rank = Rank::ready();
    rank.after(60 * SECOND);
    assert_eq!(rank.after(5 * SECOND), ends(Ending::Lost("no answer for 5 s".to_owned())));
}

#[test]
fn who_is_not_ready_is_refused() {
    let mut rank = Rank::opening(false);
    rank.on(Event::PathOpen { lanes: LANES, needs_copies: false });
    let why = "no HELLO".to_owned();
    assert_eq!(rank.answer(Answer::Refused(why.clone())), ends(Ending::Refused(why)));
}

#[test]
fn a_start_counts_for_more_than_the_answer_to_ready() {
    let mut rank = Rank::opening(false);
    rank.on(Event::PathOpen { lanes: LANES, needs_copies: false });
    assert_eq!(rank.hear(News::Started { lanes: 32 }), [Action::Start { lanes: 32 }]);
    assert_eq!(rank.answer(Answer::Lost("reset".to_owned())), []);
    assert_eq!(rank.hear(News::CallsWanted).len(), 1, "nothing is waited for");
}

#[test]
fn an_abort_ends_every_state() {
    let failed = || {
        let mut rank = Rank::running(false);
        assert_eq!(rank.fail(Failure::Silent, None), [Action::NoReason]);
        rank
    };
    let asking = || {
        let mut rank = Rank::running(false);
        assert_eq!(rank.fail(Failure::Aborted, None), []);
        rank
    };
    let states =
        [Rank::joining(), Rank::opening(true), Rank::ready(), Rank::running(true), failed()];
    for mut rank in states.into_iter().chain([asking()]) {
        assert_eq!(rank.hear(aborted()), is_aborted());
    }
    let calls = vec![MadeCall { ranks: vec![0], number: 1, call: "barrier()".to_owned() }];
    let reason = "ranks made different calls".to_owned();
    let news = News::Aborted { reason: reason.clone(), ranks: vec![0], calls: calls.clone() };
    assert_eq!(asking().hear(news), ends(Ending::Mismatch { reason, calls }));
}

#[test]
fn news_that_make_no_sense() {
    let is_nonsense = |actions: Vec<Action>| {
        assert!(matches!(&actions[..], [Action::End(Ending::Nonsense(_))]), "{actions:?}");
    };
    for lanes in [0, 31, LANES + 32] {
        is_nonsense(Rank::ready().hear(News::Started { lanes }));
    }
    is_nonsense(Rank::joining().hear(News::Started { lanes: LANES }));
    is_nonsense(Rank::opening(false).hear(News::Started { lanes: LANES }));
    is_nonsense(Rank::ready().hear(News::Assigned { durable: false }));
    is_nonsense(Rank::running(true).hear(News::Nonsense("an event of no kind".to_owned())));
}

#[test]
fn the_aggregator_may_know_why_the_data_path_failed() {
    for failure in [Failure::Aborted, mismatch()] {
        let mut rank = Rank::running(false);
        rank.fail(failure, None);
        rank.now += 1_400 * MS;
        assert_eq!(rank.hear(aborted()), is_aborted());
    }
    let mut rank = Rank::running(false);
    assert_eq!(rank.fail(Failure::Aborted, None), []);
    rank.now += 100 * MS;
    assert_eq!(rank.fail(mismatch(), Some(4)), [], "the first failure counts");
    assert_eq!(rank.after(1_400 * MS), [Action::NoReason]);
    assert_eq!(rank.fail(Failure::Silent, None), []);
    let own = goodbye("the job was aborted");
    assert_eq!(rank.on(Event::Leave(own.clone())), [send(Request::Leave(own))]);
}

#[test]
fn what_only_the_rank_knows_is_not_asked_for() {
    let own = [
        Failure::Missing([1].into()),
        Failure::Silent,
        Failure::Damaged,
        Failure::Maximum,
        Failure::Departed([1].into()),
        Failure::Round { ours: 1, newest: 3 },
    ];
    for failure in own {
        assert_eq!(Rank::running(false).fail(failure, None), [Action::NoReason], "{failure:?}");
    }
}

#[test]
fn calls_are_reported_when_they_are_refused_and_when_they_are_wanted() {
    let mut rank = Rank::running(false);
    let refused = Request::ReportCalls { last: 7, named: Some([2, 0]) };
    assert_eq!(rank.fail(mismatch(), Some(7)), [send(refused)]);
    // The second report waits for the answer to the first.
    assert_eq!(rank.hear(News::CallsWanted), []);
    let wanted = Request::ReportCalls { last: u64::MAX, named: None };
    assert_eq!(rank.answer(Answer::Lost("reset".to_owned())), [send(wanted)]);
    assert_eq!(rank.answer(Answer::Refused(String::new())), []);
    assert_eq!(rank.after(1_500 * MS), [Action::NoReason]);
}

/// Once on each connection, so that an aggregator that was restarted knows, too.
#[test]
fn an_aggregator_hears_of_a_group_that_is_not_heard() {
    let mut rank = Rank::running(true);
    let report = || send(Request::ReportNoMulticast);
    assert_eq!(rank.on(Event::HearsNoGroup), [report()]);
    assert_eq!(rank.answer(Answer::Refused("no".to_owned())), [], "the job goes on");
    assert_eq!(rank.lose(), [Action::Connect]);
    assert_eq!(rank.on(Event::Connected), [send(Request::Resume)]);
    assert_eq!(rank.answer(Answer::Done), [report()]);
    assert_eq!(rank.answer(Answer::Done), []);
    assert_eq!(rank.hear(News::Started { lanes: 320 }), [Action::SayHello]);

    // The rank finds out while it has no connection.
    let mut rank = Rank::running(true);
    rank.lose();
    assert_eq!(rank.on(Event::HearsNoGroup), []);
    rank.on(Event::Connected);
    assert_eq!(rank.answer(Answer::Done), [report()]);
}

#[test]
fn a_broken_connection_ends_what_has_not_started() {
    for mut rank in [Rank::joining(), Rank::opening(true), Rank::ready()] {
        assert_eq!(rank.lose(), is_lost());
    }
}

#[test]
fn a_data_plane_that_may_be_gone_is_looked_for_once() {
    let mut rank = Rank::running(false);
    assert_eq!(rank.lose(), [Action::Connect]);
    assert!(!rank.session.is_watched());
    assert_eq!(rank.on(Event::Unreachable("refused".to_owned())), is_lost(), "the first reason");

    let mut rank = Rank::running(false);
    rank.lose();
    assert_eq!(rank.after(SECOND), is_lost());

    let mut rank = Rank::running(false);
    rank.lose();
    assert_eq!(rank.on(Event::Connected), [send(Request::Resume)]);
    assert_eq!(rank.after(SECOND), is_lost());

    // The rank was taken for dead, and is told so.
    let mut rank = Rank::running(false);
    rank.lose();
    rank.on(Event::Connected);
    assert_eq!(rank.answer(Answer::Done), []);
    assert!(rank.session.is_watched());
    assert_eq!(rank.session.deadline(), None, "the stream is open");
    assert_eq!(rank.hear(aborted()), is_aborted());
}

#[test]
fn a_durable_data_plane_is_looked_for_until_somebody_answers() {
    let mut rank = Rank::running(true);
    assert_eq!(rank.lose(), [Action::Connect]);
    for pause in [50, 100, 200, 400, 800, 1000, 1000, 1000] {
        assert_eq!(rank.on(Event::Unreachable("refused".to_owned())), []);
        assert_eq!(rank.after(pause * MS), [Action::Connect]);
        assert!(!rank.session.is_watched());
    }
    assert_eq!(rank.on(Event::Connected), [send(Request::Resume)]);
    assert_eq!(rank.after(5 * SECOND), [], "no answer");
    assert_eq!(rank.after(SECOND), [Action::Connect]);
    rank.on(Event::Connected);
    assert_eq!(rank.answer(Answer::Done), []);
    assert!(rank.session.is_watched());
    // Rule 27.19. Its data path has been started, and that once.
    assert_eq!(rank.hear(News::Started { lanes: 320 }), [Action::SayHello]);

    // All over again.
    assert_eq!(rank.lose(), [Action::Connect]);
    assert_eq!(rank.on(Event::Unreachable("refused".to_owned())), []);
    assert_eq!(rank.after(50 * MS), [Action::Connect]);
}

/// Rule 36.8.
#[test]
fn with_others_left_a_durable_data_plane_is_looked_for_10_s() {
    let mut rank = Rank::running(true);
    rank.session = rank.session.clone().with_others();
    assert_eq!(rank.lose(), [Action::Connect]);
    for pause in [50, 100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000] {
        assert_eq!(rank.on(Event::Unreachable("refused".to_owned())), []);
        assert_eq!(rank.after(pause * MS), [Action::Connect]);
    }
    assert_eq!(rank.on(Event::Unreachable("refused".to_owned())), []);
    assert_eq!(rank.after(450 * MS), [Action::End(Ending::Lost("reset".to_owned()))]);
}

#[test]
fn an_aggregator_that_stops_is_no_rank_s_fault() {
    let mut rank = Rank::running(false);
    let (reason, ranks) = ("it stops".to_owned(), vec![2]);
    let ending = Ending::Stopped { reason: reason.clone(), ranks: ranks.clone() };
    assert_eq!(rank.hear(News::Stops { reason, ranks }), [Action::End(ending)]);
}

/// Rule 13.2: the job is aborted in the data plane before the ranks are told.
#[test]
fn what_the_data_plane_says_first_the_stream_explains() {
    let mut rank = Rank::running(false);
    assert_eq!(rank.on(Event::Failed { failure: Failure::Aborted, call: None }), []);
    let (reason, ranks) = ("the aggregator stops".to_owned(), Vec::new());
    let ending = Ending::Stopped { reason: reason.clone(), ranks: ranks.clone() };
    assert_eq!(rank.hear(News::Stops { reason, ranks }), [Action::End(ending)]);

    let mut rank = Rank::running(false);
    assert_eq!(rank.on(Event::Failed { failure: Failure::Aborted, call: None }), []);
    assert_eq!(rank.after(1500 * MS), [Action::NoReason]);
}

/// Otherwise such an aggregator and its ranks would keep each other busy.
#[test]
fn an_aggregator_that_ends_streams_at_once_is_asked_less_and_less_often() {
    let mut rank = Rank::running(true);
    rank.lose();
    for pause in [50, 100, 200] {
        assert_eq!(rank.on(Event::Connected), [send(Request::Resume)]);
        rank.answer(Answer::Done);
        assert_eq!(rank.lose(), []);
        assert_eq!(rank.after(pause * MS), [Action::Connect]);
    }
}

#[test]
fn an_aggregator_that_does_not_know_the_job_ends_it() {
    for durable in [false, true] {
        let resuming = || {
            let mut rank = Rank::running(durable);
            rank.lose();
            rank.on(Event::Connected);
            rank
        };
        let why = "no such member".to_owned();
        let forgotten = ends(Ending::Forgotten(why.clone()));
        assert_eq!(resuming().answer(Answer::Unknown(why.clone())), forgotten);
        assert_eq!(resuming().answer(Answer::Refused(why.clone())), ends(Ending::Refused(why)));
    }
}

#[test]
fn a_goodbye_without_a_connection_makes_one() {
    let leaves = [send(Request::Leave(goodbye("")))];
    let mut rank = Rank::running(true);
    rank.lose();
    rank.on(Event::Unreachable(String::new()));
    assert_eq!(rank.on(Event::Leave(goodbye(""))), [Action::Connect], "it was pausing");
    assert_eq!(rank.on(Event::Connected), leaves);
    assert_eq!(rank.answer(Answer::Done), ends(Ending::Left));

    let mut rank = Rank::running(true);
    rank.lose();
    assert_eq!(rank.on(Event::Leave(goodbye(""))), [], "it was connecting");
    assert_eq!(rank.on(Event::Connected), leaves);
    assert_eq!(rank.after(SECOND), ends(Ending::Left));

    let mut rank = Rank::running(true);
    rank.lose();
    rank.on(Event::Connected);
    assert_eq!(rank.on(Event::Leave(goodbye(""))), leaves, "it was resuming");

    let mut rank = Rank::running(false);
    rank.lose();
    rank.on(Event::Leave(goodbye("")));
    assert_eq!(rank.on(Event::Unreachable(String::new())), ends(Ending::Left));
}

#[test]
fn a_reason_may_come_after_the_connection_broke() {
    let mut rank = Rank::running(true);
    rank.lose();
    assert_eq!(rank.fail(Failure::Aborted, None), []);
    rank.on(Event::Connected);
    rank.answer(Answer::Done);
    assert_eq!(rank.hear(aborted()), is_aborted());
}

/// The combiner died and does not come back: the root aborts the job, and nobody can say why.
#[test]
fn where_no_reason_can_come_the_lost_aggregator_is_named() {
    let mut rank = Rank::running(true);
    rank.lose();
    assert_eq!(rank.fail(Failure::Aborted, None), []);
    assert_eq!(rank.after(1_500 * MS), is_lost());

    let mut rank = Rank::running(true);
    rank.lose();
    assert_eq!(rank.fail(mismatch(), None), []);
    assert_eq!(rank.after(1_500 * MS), [Action::NoReason], "the failure names both ranks");
}

fn any_text() -> impl Strategy<Value = String> {
    Just("text".to_owned())
}

fn any_news() -> impl Strategy<Value = News> {
    prop_oneof![
        Just(News::Waiting(vec![1])),
        any::<bool>().prop_map(|durable| News::Assigned { durable }),
        prop_oneof![Just(LANES), any::<u16>()].prop_map(|lanes| News::Started { lanes }),
        Just(aborted()),
        any::<u16>().prop_map(News::Left),
        any_text().prop_map(|reason| News::Stops { reason, ranks: vec![1] }),
        Just(News::CallsWanted),
        any_text().prop_map(News::Nonsense),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    let answer = prop_oneof![
        8 => Just(Answer::Done),
        1 => Just(Answer::Unready(vec![1])),
        1 => any_text().prop_map(Answer::Refused),
        1 => any_text().prop_map(Answer::Unknown),
        2 => any_text().prop_map(Answer::Lost),
    ];
    let failure = prop_oneof![Just(Failure::Aborted), Just(mismatch()), Just(Failure::Silent)];
    prop_oneof![
        4 => Just(Event::Connected),
        1 => any_text().prop_map(Event::Unreachable),
        6 => answer.prop_map(Event::Answered),
        2 => any_news().prop_map(Event::Heard),
        2 => any::<bool>().prop_map(|durable| Event::Heard(News::Assigned { durable })),
        2 => Just(Event::Heard(News::Started { lanes: LANES })),
        1 => any_text().prop_map(Event::Lost),
        2 => Just(Event::PathOpen { lanes: LANES, needs_copies: false }),
        1 => (failure, any::<Option<u64>>())
            .prop_map(|(failure, call)| Event::Failed { failure, call }),
        1 => Just(Event::HearsNoGroup),
        1 => Just(Event::Leave(Goodbye::default())),
    ]
}

/// The observed behaviour of a session in a random history.
#[derive(Default)]
struct Seen {
    connects: u32,
    paths: u32,
    starts: u32,
    no_reasons: u32,
    /// A goodbye went out; over the latest connection.
    leaves: u32,
    ends: u32,
    /// Whether a connection was asked for without a result, or a request was sent without an
    /// answer.
    awaits_connection: bool,
    awaits_answer: bool,
}

impl Seen {
    fn note(&mut self, action: &Action) {
        assert_eq!(self.ends, 0, "{action:?} after the end");
        match action {
            Action::Connect => {
                self.connects += 1;
                self.leaves = 0;
                (self.awaits_connection, self.awaits_answer) = (true, false);
            }
            Action::Send(request) => {
                assert!(!self.awaits_connection, "{request:?} without a connection");
                assert!(self.leaves == 0, "{request:?} after the goodbye");
                match request {
                    Request::Join => assert_eq!(self.connects, 1),
                    Request::Resume => assert!(self.starts == 1 && self.connects > 1),
                    Request::Ready { .. } | Request::Unready => {
                        assert!(self.paths == 1 && self.starts == 0);
                    }
                    Request::ReportCalls { .. } | Request::ReportNoMulticast => {
                        assert_eq!(self.starts, 1);
                    }
                    Request::Leave(_) => {
                        assert!(self.paths == 1);
                        self.leaves += 1;
                    }
                }
                self.awaits_answer = true;
            }
            Action::OpenPath => self.paths += 1,
            Action::Start { lanes } => {
                assert!(self.paths == 1 && *lanes > 0 && lanes.is_multiple_of(32));
                self.starts += 1;
            }
            Action::SayHello => assert!(self.starts == 1 && self.connects > 1),
            Action::NoReason => {
                assert_eq!(self.starts, 1);
                self.no_reasons += 1;
            }
            Action::End(_) => self.ends += 1,
        }
        assert!(self.paths <= 1 && self.starts <= 1 && self.no_reasons <= 1);
    }
}

/// Whether an event can happen: connections and answers come only after they were asked for.
fn can_happen(event: &Event, seen: &Seen, session: &Session) -> bool {
    match event {
        Event::Connected | Event::Unreachable(_) => seen.awaits_connection,
        Event::Answered(_) => seen.awaits_answer,
        Event::Heard(_) | Event::Lost(_) => session.is_watched(),
        Event::PathOpen { .. } => seen.paths == 1,
        Event::Failed { .. } | Event::HearsNoGroup => seen.starts == 1,
        Event::Leave(_) => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// For any events in any order: the session ends once, asks for nothing out of order, and
    /// always waits for something.
    #[test]
    fn whatever_happens(
        events in prop::collection::vec(prop_oneof![
            9 => any_event().prop_map(Some),
            1 => Just(None),
        ], 1..60),
    ) {
        let (mut session, mut seen, mut now) = (Session::new(0, JOIN_TIMEOUT), Seen::default(), 0);
        let step = |session: &mut Session, seen: &mut Seen| {
            while let Some(action) = session.next_action() {
                seen.note(&action);
            }
        };
        step(&mut session, &mut seen);
        for event in events {
            match event {
                Some(event) if can_happen(&event, &seen, &session) => {
                    match event {
                        Event::Connected | Event::Unreachable(_) => seen.awaits_connection = false,
                        Event::Answered(_) => seen.awaits_answer = false,
                        _ => {}
                    }
                    session.handle(now, event);
                }
                Some(_) => continue,
                None => {
                    let Some(deadline) = session.deadline() else { continue };
                    prop_assert!(deadline >= now);
                    now = deadline;
                    session.on_timer(now);
                    prop_assert!(session.deadline().is_none_or(|next| next > now), "it is idle");
                }
            }
            step(&mut session, &mut seen);
            let waits = seen.awaits_connection
                || session.deadline().is_some()
                || session.is_watched();
            prop_assert!(waits || seen.ends == 1, "it waits for nothing: {session:?}");
        }
        // A rank that wants to leave has left a second later.
        session.handle(now, Event::Leave(Goodbye::default()));
        step(&mut session, &mut seen);
        session.on_timer(now + SECOND);
        step(&mut session, &mut seen);
        prop_assert_eq!(seen.ends, 1);
        prop_assert_eq!(session.deadline(), None);
    }

    /// Impossible events do no harm either.
    #[test]
    fn whatever_is_made_up(events in prop::collection::vec(any_event(), 1..60)) {
        let mut session = Session::new(0, JOIN_TIMEOUT);
        let mut ends = 0;
        for (now, event) in (0..).step_by(100_000_000).zip(events) {
            session.handle(now, event);
            session.on_timer(now);
            while let Some(action) = session.next_action() {
                prop_assert_eq!(ends, 0);
                ends += u32::from(matches!(action, Action::End(_)));
            }
        }
    }
}
