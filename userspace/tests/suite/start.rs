//! The daemon on XDP before it is ready: it may be told to stop, and interfaces may not exist yet.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use switchml_rack::{
    AGGREGATOR_ADDRESS, Mode, Namespace, Process, Signal, in_both_modes, wait_until,
};

use crate::common::PATIENCE;
use crate::common::program::busy;
use crate::xdp::{
    Member, attached, on_all_ports, pins, rack, ready, run_ranks, serve, spawn, tool,
};

in_both_modes! {
    whenever_it_is_told_to_stop_it_ends_at_once,
    what_is_not_there_yet_is_served_when_it_comes,
}

/// Moments of a start at which it is stopped.
const MOMENTS: u32 = 20;
/// Most processor time to end. It takes a few hundredths of a second; loading the programs with the
/// verifier's log takes ten seconds and more.
const LITTLE: Duration = Duration::from_secs(2);

/// The processor time that it takes to end once it is told to.
fn time_to_end(daemon: &Process) -> Duration {
    let pid = daemon.id();
    let before = busy(pid);
    daemon.signal(Signal::TERM).expect("signalled");
    let id = Pid::from_raw(pid as i32).expect("a process");
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    wait_until!(
        PATIENCE,
        waitid(WaitId::Pid(id), options).expect("it is a child").is_some(),
        "it does not end"
    );
    busy(pid) - before
}

fn whenever_it_is_told_to_stop_it_ends_at_once(mode: Mode) {
    let rack = rack(2, mode);
    let arguments = on_all_ports(&rack);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let begin = Instant::now();
    let mut whole = serve(&rack);
    let start = begin.elapsed();
    whole.terminate(PATIENCE).expect("ends");
    for moment in 0..MOMENTS {
        let mut daemon = spawn(rack.switch(), &arguments);
        std::thread::sleep(start * moment / MOMENTS);
        let took = time_to_end(&daemon);
        let status = daemon.wait(PATIENCE).expect("ended");
        println!("stopped {moment}/{MOMENTS} through its start: {status}, {took:?}");
        assert!(took < LITTLE, "{took:?} at moment {moment}: {}", daemon.stderr());
        // Before the daemon has a handler, the signal itself ends it.
        let is_signal = status.signal() == Some(Signal::TERM.as_raw());
        assert!(status.success() || is_signal, "{status} at {moment}: {}", daemon.stderr());
        assert_eq!(attached(rack.switch()), [] as [&str; 0], "at moment {moment}");
        assert!(!pins(rack.switch()), "at moment {moment}: {}", daemon.stderr());
    }
}

/// The daemon's answer to an HTTP request in its own namespace.
fn ask(switch: &Namespace, path: &'static str) -> String {
    switch.run(move || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, 48865)).expect("connected");
        let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    })
}

fn what_is_not_there_yet_is_served_when_it_comes(mode: Mode) {
    let rack = rack(2, mode);
    let switch = rack.switch();
    let rename = |from: &str, to: &str| {
        tool(switch, &format!("ip link set {from} down"));
        tool(switch, &format!("ip link set {from} name {to}"));
        tool(switch, &format!("ip link set {to} up"));
    };
    rename("p1", "later");
    tool(switch, "ip address flush dev br0");
    tool(switch, "ip link set lo up");
    let arguments = on_all_ports(&rack);
    let mut daemon =
        ready(spawn(switch, &arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    let not_ready = ask(switch, "/readyz");
    assert!(not_ready.starts_with("HTTP/1.1 503 "), "{not_ready}");
    for fault in [
        "p0: serves nobody: neither it nor its bridge has an address yet\n",
        "p1: serves nobody: there is no such interface yet\n",
    ] {
        assert!(not_ready.contains(fault), "{not_ready}");
    }
    assert!(ask(switch, "/healthz").starts_with("HTTP/1.1 200 "));
    for line in ["waiting for an address: ", "waiting for interface \"p1\", which is not in"] {
        assert!(daemon.stderr().contains(line), "{}", daemon.stderr());
    }

    rename("later", "p1");
    tool(switch, &format!("ip address add {AGGREGATOR_ADDRESS}/24 dev br0"));
    wait_until!(
        PATIENCE,
        ask(switch, "/readyz").starts_with("HTTP/1.1 200 "),
        "{}",
        daemon.stderr()
    );
    run_ranks(&rack, |rank| async move {
        let mut member = Member::start(rank, 2).await;
        assert_eq!(member.sum(0, 0, &[rank + 1; 32]), vec![3; 32]);
        member.leave().await;
    });
    assert!(daemon.terminate(PATIENCE).expect("ends").success());
    assert_eq!(attached(switch), [] as [&str; 0]);
    assert!(!pins(switch));
}

/// An address of the control plane that the host gets later is heard then.
#[test]
fn an_address_that_comes_later_is_heard() {
    switchml_rack::needs_racks!();
    let rack = rack(1, Mode::Native);
    let switch = rack.switch();
    let given = ["--data-plane", "software", "--control", "10.99.0.1:48865"];
    let mut daemon = spawn(switch, &[&given[..], &["--data-address", "10.99.0.1"]].concat());
    daemon.wait_for_line("ready: control 10.99.0.1:48865", PATIENCE).expect("ready");
    let line = "waiting for address 10.99.0.1, which this host does not have yet";
    assert_eq!(daemon.stderr().matches(line).count(), 2, "{}", daemon.stderr());
    tool(switch, "ip address add 10.99.0.1/24 dev br0");
    let reached = switch.run(|| TcpStream::connect("10.99.0.1:48865").map(drop));
    reached.expect("it is heard");
    assert!(daemon.terminate(PATIENCE).expect("ends").success());
}
