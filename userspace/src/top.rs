//! `switchml-aggregator top`: the status page in a terminal.

mod screen;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use switchml_userspace::view::View;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::report::{self, Aggregator};
use screen::Screen;

/// Time from one answer to the next request.
const PERIOD: Duration = Duration::from_secs(1);
/// Lines by which Page Up and Page Down move.
const PAGE: i32 = 20;

/// Follows a running aggregator until the user presses q, or a signal ends it.
pub async fn run(of: &Aggregator) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("top needs a terminal; for programs there is `status --json`");
    }
    // Errors of the address are reported before the screen changes.
    let mut screen = Screen::new(report::look(of).await?, Instant::now());
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    // This restores the terminal after a panic, too.
    let mut terminal = ratatui::try_init().context("cannot use this terminal")?;
    let result = tokio::select! {
        result = follow(of, &mut screen, &mut terminal) => result,
        _ = terminate.recv() => Ok(()),
    };
    ratatui::try_restore().context("cannot restore the terminal")?;
    result
}

async fn follow(
    of: &Aggregator,
    screen: &mut Screen,
    terminal: &mut DefaultTerminal,
) -> anyhow::Result<()> {
    let mut events = events();
    let mut answer = Box::pin(next_view(of));
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        tokio::select! {
            view = &mut answer => {
                match view {
                    Ok(view) => screen.update(view, Instant::now()),
                    Err(error) => screen.complain(format!("{error:#}")),
                }
                answer = Box::pin(next_view(of));
            }
            event = events.recv() => match event {
                Some(event) => match meaning(&event) {
                    Some(Wish::Quit) => return Ok(()),
                    Some(Wish::Move(lines)) => screen.scroll(lines),
                    None => {}
                },
                // The terminal is gone, so nobody can press q.
                None => return Ok(()),
            },
        }
    }
}

async fn next_view(of: &Aggregator) -> anyhow::Result<View> {
    sleep(PERIOD).await;
    report::look(of).await
}

/// The terminal's events. The thread ends with the process.
fn events() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                break;
            }
        }
    });
    receiver
}

#[derive(Debug, PartialEq)]
enum Wish {
    Quit,
    /// Scroll by this many lines, up if negative.
    Move(i32),
}

fn meaning(event: &Event) -> Option<Wish> {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
        return None;
    };
    match code {
        KeyCode::Char('q') | KeyCode::Esc => Some(Wish::Quit),
        // The terminal makes no signal of it.
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Quit),
        KeyCode::Up => Some(Wish::Move(-1)),
        KeyCode::Down => Some(Wish::Move(1)),
        KeyCode::PageUp => Some(Wish::Move(-PAGE)),
        KeyCode::PageDown => Some(Wish::Move(PAGE)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_control_c_quit() {
        let press = |code, modifiers| meaning(&Event::Key(KeyEvent::new(code, modifiers)));
        let (plain, control) = (KeyModifiers::NONE, KeyModifiers::CONTROL);
        assert_eq!(press(KeyCode::Char('q'), plain), Some(Wish::Quit));
        assert_eq!(press(KeyCode::Esc, plain), Some(Wish::Quit));
        assert_eq!(press(KeyCode::Char('c'), control), Some(Wish::Quit));
        assert_eq!(press(KeyCode::Char('c'), plain), None);
        assert_eq!(press(KeyCode::Down, plain), Some(Wish::Move(1)));
        assert_eq!(meaning(&Event::Resize(80, 25)), None);
    }
}
