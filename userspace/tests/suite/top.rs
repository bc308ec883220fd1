//! `switchml-aggregator top` in a terminal.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::common::{Daemon, PATIENCE};

/// The escape sequence that switches back to the earlier screen.
const LEAVE: &str = "\x1b[?1049l";

/// `top` in a separate terminal.
struct Top {
    child: Child,
    /// Our end of the terminal, and its own.
    keyboard: File,
    screen: File,
    output: mpsc::Receiver<String>,
    reader: JoinHandle<()>,
    text: String,
}

impl Top {
    fn start(daemon: &Daemon) -> Self {
        // If the program had our end, too, it would not end with the test.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("a terminal");
        grantpt(&ours).expect("granted");
        unlockpt(&ours).expect("unlocked");
        let name = ptsname(&ours, Vec::new()).expect("a name");
        let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty());
        let theirs = File::from(theirs.expect("opened"));
        let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&theirs, size).expect("a size");
        let stdio = || Stdio::from(theirs.try_clone().expect("cloned"));
        let child = Command::new(env!("CARGO_BIN_EXE_switchml-aggregator"))
            .args(["top", "--connect", &daemon.control.to_string()])
            .env("TERM", "xterm")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .expect("it starts");
        let keyboard = File::from(ours);
        let (sender, output) = mpsc::channel();
        let mut from = keyboard.try_clone().expect("cloned");
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends once the other end of the terminal is closed.
            while let Ok(length @ 1..) = from.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                if sender.send(text).is_err() {
                    break;
                }
            }
        });
        Self { child, keyboard, screen: theirs, output, reader, text: String::new() }
    }

    /// Reads until this has been written.
    fn until(&mut self, expected: &str) {
        let begin = Instant::now();
        while !self.text.contains(expected) {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            let more = self.output.recv_timeout(left);
            self.text += &more.unwrap_or_else(|_| panic!("no {expected:?} in {:?}", self.text));
        }
    }

    /// Whether the terminal is restored: it echoes typed text, line by line.
    fn is_as_it_was(&self) -> bool {
        let modes = tcgetattr(self.screen.as_fd()).expect("its modes").local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    fn end(mut self) -> ExitStatus {
        self.until(LEAVE);
        let status = self.child.wait().expect("it ends");
        assert!(self.is_as_it_was());
        drop((self.screen, self.keyboard));
        self.reader.join().expect("no panic");
        status
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_a_job_and_leaves_the_terminal_as_it_was() {
    let daemon = Daemon::start(1024).await;
    let mut ranks = Vec::new();
    for rank in [0, 1, 2] {
        ranks.push(daemon.join("train", rank, 4).await);
    }
    let mut top = Top::start(&daemon);
    tokio::task::block_in_place(|| top.until("waits for rank 3 to join, for "));
    assert!(!top.is_as_it_was());
    // Unchanged text is not written again, so the name has letters that no other line has.
    ranks.push(daemon.join("XYZXYZ", 0, 4).await);
    tokio::task::block_in_place(|| {
        top.until("XYZXYZ");
        std::io::Write::write_all(&mut top.keyboard, b"q").expect("pressed");
        assert!(top.end().success());
    });

    let mut top = Top::start(&daemon);
    let pid = Pid::from_child(&top.child);
    tokio::task::block_in_place(|| {
        top.until("XYZXYZ");
        kill_process(pid, Signal::TERM).expect("signalled");
        assert!(top.end().success());
    });
    drop(ranks);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_it_says_so_in_one_line() {
    let output = Command::new(env!("CARGO_BIN_EXE_switchml-aggregator"))
        .args(["top", "--connect", "127.0.0.1:1"])
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "switchml-aggregator: top needs a terminal; for programs there is `status --json`\n"
    );
}
