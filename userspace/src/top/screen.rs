//! The screen of `top`: the tables of the status page, one below the other.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use switchml_userspace::view::{JobView, MemberView, Role, View};

/// The contents of the screen.
pub struct Screen {
    view: View,
    seen_at: Instant,
    /// The view before, and seconds between both, for rates.
    before: Option<(View, f64)>,
    trouble: Option<String>,
    /// Number of lines above the visible part.
    offset: u16,
}

impl Screen {
    /// The screen with the first view.
    pub fn new(view: View, seen_at: Instant) -> Self {
        Self { view, seen_at, before: None, trouble: None, offset: 0 }
    }

    /// Replaces the view with a later one.
    pub fn update(&mut self, view: View, now: Instant) {
        let passed = now.saturating_duration_since(self.seen_at).as_secs_f64();
        let before = std::mem::replace(&mut self.view, view);
        (self.before, self.seen_at, self.trouble) = (Some((before, passed)), now, None);
    }

    /// Shows that there was no answer.
    pub fn complain(&mut self, why: String) {
        self.trouble = Some(why);
    }

    /// Scrolls down by this many lines.
    pub fn scroll(&mut self, lines: i32) {
        self.offset = self.offset.saturating_add_signed(lines.try_into().unwrap_or_default());
    }

    /// Draws it.
    pub fn draw(&mut self, frame: &mut Frame) {
        let [head, body, keys] =
            Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()), head);
        let lines = self.body();
        let hidden = lines.len().saturating_sub(body.height.into());
        self.offset = self.offset.min(hidden.try_into().unwrap_or(u16::MAX));
        frame.render_widget(Paragraph::new(lines).scroll((self.offset, 0)), body);
        frame.render_widget(Line::from("q quits, arrows and Page Up/Down scroll").dim(), keys);
    }

    fn head(&self) -> Vec<Line<'_>> {
        let View { host, version, data_plane, attachment, .. } = &self.view;
        let role = match &self.view.role {
            Role::Root { slots, slots_free } => format!("{slots_free} of {slots} slots free"),
            Role::Combiner { parent, cells } => format!("combiner below {parent}, {cells} cells"),
        };
        let about = format!("{host}, {version}, {data_plane}: {attachment}; {role}");
        let trouble = match (&self.trouble, &self.view.jobs_unknown) {
            (Some(why), _) => format!("No answer from the aggregator: {why}"),
            (None, Some(why)) => format!("Jobs are unknown: {why}"),
            (None, None) => String::new(),
        };
        vec![Line::from(about), Line::from(trouble).style(WRONG)]
    }

    fn body(&self) -> Vec<Line<'static>> {
        let jobs = self.view.jobs.iter();
        let members = jobs.clone().flat_map(|job| job.members.iter().map(move |it| (job, it)));
        let tables = [
            table(
                ["Job", "Name", "State", "Ranks here", "Aggregators", "Waits for"],
                jobs.map(job),
            ),
            table(
                ["Job", "Rank", "Address", "Rack", "Results come", "Waited for, s"],
                members.map(member),
            ),
            table(["Port", "Hook", "In, Mb/s", "Out, Mb/s", "Faults"], self.ports()),
            table(["Outcome", "Count", "Per second", ""], self.packets()),
            table(["Refused", "Count", "Per second", ""], self.refusals()),
        ];
        let used = tables.into_iter().filter(|lines| lines.len() > 1);
        used.flat_map(|lines| lines.into_iter().chain([Line::default()])).collect()
    }

    fn ports(&self) -> impl Iterator<Item = [Cell; 5]> {
        self.view.ports.iter().map(|port| {
            let old = |view: &View| view.ports.iter().position(|old| old.name == port.name);
            let old = self.before.as_ref().and_then(|(view, _)| Some(&view.ports[old(view)?]));
            let megabits = |now: u64, before: Option<u64>| match self.rate(now, before) {
                Some(bytes) => plain(format!("{:.1}", bytes * 8.0 / 1e6)),
                None => plain(""),
            };
            [
                plain(&port.name),
                plain(&port.hook),
                megabits(port.received_bytes, old.map(|old| old.received_bytes)),
                megabits(port.sent_bytes, old.map(|old| old.sent_bytes)),
                wrong(port.faults.join("; ")),
            ]
        })
    }

    fn packets(&self) -> impl Iterator<Item = [Cell; 4]> {
        let counts = self.view.packets.iter().filter(|count| count.packets > 0);
        counts.map(|count| {
            let list = self.before.as_ref().map(|(view, _)| &view.packets);
            let old = list.and_then(|old| old.iter().find(|old| old.outcome == count.outcome));
            let rate = self.rate(count.packets, old.map(|old| old.packets));
            counted(&count.outcome, count.packets, rate, &count.help)
        })
    }

    fn refusals(&self) -> impl Iterator<Item = [Cell; 4]> {
        let counts = self.view.refusals.iter().filter(|count| count.times > 0);
        counts.map(|count| {
            let list = self.before.as_ref().map(|(view, _)| &view.refusals);
            let old = list.and_then(|old| old.iter().find(|old| old.reason == count.reason));
            let rate = self.rate(count.times, old.map(|old| old.times));
            counted(&count.reason, count.times, rate, &count.help)
        })
    }

    /// How fast a counter has grown, per second; `None` if it is not known. A counter that is
    /// smaller than before has been reset.
    fn rate(&self, now: u64, before: Option<u64>) -> Option<f64> {
        let (_, seconds) = self.before.as_ref()?;
        let grown = now.checked_sub(before?)?;
        (*seconds > 0.0).then(|| grown as f64 / seconds)
    }
}

fn counted(name: &str, count: u64, rate: Option<f64>, help: &str) -> [Cell; 4] {
    let rate = rate.map(|rate| format!("{rate:.0}")).unwrap_or_default();
    [plain(name), plain(count.to_string()), plain(rate), plain(help)]
}

fn job(job: &JobView) -> [Cell; 6] {
    [
        plain(job.number.map_or("–".to_owned(), |number| number.to_string())),
        plain(&job.name),
        if job.state == "aborted" { wrong(job.state) } else { plain(job.state) },
        plain(format!("{} of {}", job.here(), job.world_size)),
        plain(job.stripe().unwrap_or_else(|| "1".to_owned())),
        wrong(job.reason.clone().or_else(|| job.wait()).unwrap_or_default()),
    ]
}

fn member((job, member): (&JobView, &MemberView)) -> [Cell; 6] {
    let results = match member.results {
        _ if member.left => "left",
        _ if !member.here => "lost",
        results => results.unwrap_or("not ready"),
    };
    [
        plain(&job.name),
        plain(member.rank.to_string()),
        plain(&member.address),
        plain(&member.rack),
        plain(results),
        plain(format!("{:.1}", member.waited_for_seconds)),
    ]
}

const WRONG: Style = Style::new().red().bold();

/// Text of a table, and its style. Names may contain anything, so control characters are made
/// visible.
type Cell = (String, Style);

fn plain(text: impl AsRef<str>) -> Cell {
    (text.as_ref().escape_debug().to_string(), Style::new())
}

fn wrong(text: impl AsRef<str>) -> Cell {
    (text.as_ref().escape_debug().to_string(), WRONG)
}

/// The head, and a line for each row; columns are as wide as their contents.
fn table<const N: usize>(
    head: [&str; N],
    rows: impl Iterator<Item = [Cell; N]>,
) -> Vec<Line<'static>> {
    let head = head.map(|name| (name.to_owned(), Style::new().bold()));
    let rows: Vec<_> = [head].into_iter().chain(rows).collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        let widths = rows.iter().map(|row| Span::raw(&row[column].0).width());
        widths.max().unwrap_or_default()
    });
    let line = |row: [Cell; N]| {
        let cells = row.into_iter().zip(widths).flat_map(|((text, style), width)| {
            let padding = width + 2 - Span::raw(&text).width();
            [Span::styled(text, style), Span::raw(" ".repeat(padding))]
        });
        cells.collect::<Line>()
    };
    rows.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use switchml_control::{
        Counter, JobState, JobStatus, ListJobsReply, MemberStatus, Port, Refusal, StatusReply,
    };

    /// A job that waits for rank 1, after this many packets, bytes and refusals.
    fn view(count: u64) -> View {
        let port = Port {
            name: "eth1".to_owned(),
            hook: "native XDP".to_owned(),
            received_bytes: count * 125_000,
            ..Port::default()
        };
        let added = Counter {
            name: "added".to_owned(),
            help: "added to its round".to_owned(),
            packets: count,
        };
        let never = Counter { name: "never".to_owned(), ..Counter::default() };
        let refusal = Refusal {
            reason: "no_token".to_owned(),
            help: "joins without a job token".to_owned(),
            times: count,
        };
        let status = StatusReply {
            host: "switch".to_owned(),
            version: "0.1.0".to_owned(),
            data_plane: "xdp".to_owned(),
            attachment: "eth1".to_owned(),
            slots_total: 1024,
            slots_free: 512,
            ports: vec![port],
            counters: vec![added, never],
            refusals: vec![refusal],
            ..StatusReply::default()
        };
        let here =
            MemberStatus { ready: true, address: "10.0.0.1".to_owned(), ..Default::default() };
        let late =
            MemberStatus { rank: 1, lacked_ms: 12_000, lacked_total_ms: 34_500, ..here.clone() };
        let mut job = JobStatus {
            name: "train\u{1b}[2J".to_owned(),
            world_size: 2,
            shards: vec![0],
            members: vec![here, late],
            aggregators: 5,
            share: Some(3333),
            ..JobStatus::default()
        };
        job.set_state(JobState::Started);
        View::new(status, Ok(ListJobsReply { jobs: vec![job] }))
    }

    /// The lines of a terminal of this height, without spaces at their ends.
    fn shown(screen: &mut Screen, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(100, height)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let lines = buffer.content().chunks(100);
        let lines = lines.map(|cells| cells.iter().map(|cell| cell.symbol()).collect::<String>());
        lines.map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn it_shows_what_the_page_shows() {
        let begin = Instant::now();
        let mut screen = Screen::new(view(1000), begin);
        let text = shown(&mut screen, 30).join("\n");
        let head = "switch, 0.1.0, xdp: eth1; 512 of 1024 slots free\n";
        assert!(text.starts_with(head), "{text}");
        screen.update(view(3000), begin + Duration::from_secs(2));
        let lines = shown(&mut screen, 30);
        for expected in [
            "Job  Name            State    Ranks here  Aggregators     Waits for",
            "0    train\\u{1b}[2J  started  2 of 2      1 of 5, 33.3 %  waits for rank 1 to \
             contribute, for 12 s",
            "train\\u{1b}[2J  0     10.0.0.1        by multicast  0.0",
            "train\\u{1b}[2J  1     10.0.0.1        by multicast  34.5",
            // 2000 × 125,000 bytes in 2 s.
            "eth1  native XDP  1000.0    0.0",
            "added    3000   1000        added to its round",
            "no_token  3000   1000        joins without a job token",
            "q quits, arrows and Page Up/Down scroll",
        ] {
            assert!(lines.iter().any(|line| line == expected), "no {expected:?} in {lines:#?}");
        }
        assert!(!lines.iter().any(|line| line.contains("never")), "{lines:#?}");
        screen.complain("refused".to_owned());
        assert_eq!(shown(&mut screen, 30)[1], "No answer from the aggregator: refused");
        screen.update(view(0), begin + Duration::from_secs(3));
        assert_eq!(shown(&mut screen, 30)[1], "", "it answers again, started anew");
    }

    #[test]
    fn it_scrolls_as_far_as_there_is_something() {
        let mut screen = Screen::new(view(1), Instant::now());
        let all = shown(&mut screen, 30);
        assert!(all[2].starts_with("Job  Name"), "{all:#?}");
        screen.scroll(3);
        assert_eq!(shown(&mut screen, 10)[2], all[5]);
        screen.scroll(-1);
        assert_eq!(shown(&mut screen, 10)[2], all[4]);
        screen.scroll(1000);
        assert_eq!(shown(&mut screen, 10)[8], "", "the line after the last table");
        screen.scroll(-1000);
        assert_eq!(shown(&mut screen, 10)[2], all[2]);
    }
}
