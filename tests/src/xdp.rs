//! BPF programs of a few instructions, made by hand, so that no compiler for BPF is needed to build
//! a rack.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The action that hands a frame on to the network stack.
pub const XDP_PASS: i32 = 2;
/// The action that drops a frame.
const XDP_DROP: i32 = 1;

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
/// Attaches before all other programs at that hook.
const BPF_F_BEFORE: u32 = 1 << 3;
/// The verdict in tc that drops a frame.
const TC_ACT_SHOT: i32 = 2;
/// The verdict in tc that leaves a frame to the next program.
const TCX_NEXT: i32 = -1;
/// Offset in `struct __sk_buff`: whether a tag was removed from the frame.
const VLAN_PRESENT: i16 = 20;
/// `htons(0x8100)` on this machine.
const VLAN_PROTOCOL: i32 = 0x8100u16.to_be() as i32;
const SKB_VLAN_PUSH: i32 = 18;
const SKB_VLAN_POP: i32 = 19;
const REDIRECT: i32 = 23;

/// One BPF instruction, as in `struct bpf_insn`.
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// The part of `union bpf_attr` that BPF_PROG_LOAD needs; the kernel takes the rest for zero.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
}

/// The part of `union bpf_attr` that BPF_LINK_CREATE needs.
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

impl Instruction {
    const EXIT: Self = Self::new(0x95, 0, 0, 0);

    const fn new(code: u8, registers: u8, offset: i16, immediate: i32) -> Self {
        Self { code, registers, offset, immediate }
    }

    /// register = immediate
    const fn set(register: u8, immediate: i32) -> Self {
        Self::new(0xb7, register, 0, immediate)
    }

    /// r0 = `action`
    const fn answer(action: i32) -> Self {
        Self::set(0, action)
    }

    /// r0 = helper(r1, …)
    const fn call(helper: i32) -> Self {
        Self::new(0x85, 0, 0, helper)
    }
}

/// Loads a program that answers `action` to every frame.
pub fn load(action: i32) -> io::Result<OwnedFd> {
    load_program(BPF_PROG_TYPE_XDP, &[Instruction::answer(action), Instruction::EXIT])
}

/// Loads a program that drops UDP, as one against floods does, and passes everything else.
pub fn load_udp_filter() -> io::Result<OwnedFd> {
    load_program(BPF_PROG_TYPE_XDP, &udp_filter([0, 4], XDP_DROP, XDP_PASS))
}

/// Drops UDP that comes in through an interface of the calling thread's namespace, at tc ingress
/// before any other program there sees it, until the descriptor is closed.
pub fn filter_udp_at_ingress(interface: &str) -> io::Result<OwnedFd> {
    // Offsets in `struct __sk_buff`: data, data_end.
    let program = udp_filter([76, 80], TC_ACT_SHOT, TCX_NEXT);
    let program = load_program(BPF_PROG_TYPE_SCHED_CLS, &program)?;
    attach_at(&program, interface, BPF_TCX_INGRESS, BPF_F_BEFORE)
}

/// A program that drops UDP and passes everything else, where the context has data and its end at
/// these offsets.
fn udp_filter([data, end]: [i16; 2], drop: i32, pass: i32) -> [Instruction; 13] {
    // Ethernet and IPv4 headers of a frame: their end, the EtherType, the protocol.
    const HEADERS: i32 = 34;
    const ETHERTYPE: i16 = 12;
    const PROTOCOL: i16 = 23;
    [
        Instruction::new(0x61, 0x12, data, 0),    // r2 = context's data
        Instruction::new(0x61, 0x13, end, 0),     // r3 = context's data_end
        Instruction::new(0xbf, 0x24, 0, 0),       // r4 = r2
        Instruction::new(0x07, 0x04, 0, HEADERS), // r4 += HEADERS
        Instruction::new(0x2d, 0x34, 6, 0),       // if r4 > r3, to the end
        Instruction::new(0x69, 0x25, ETHERTYPE, 0), // r5 = *(u16 *)(r2 + ETHERTYPE)
        Instruction::new(0x55, 0x05, 4, 0x0008),  // if it is not IPv4's, to the end
        Instruction::new(0x71, 0x25, PROTOCOL, 0), // r5 = *(u8 *)(r2 + PROTOCOL)
        Instruction::new(0x55, 0x05, 2, 17),      // if it is not UDP's, to the end
        Instruction::answer(drop),
        Instruction::EXIT,
        Instruction::answer(pass),
        Instruction::EXIT,
    ]
}

/// Joins two interfaces of the calling thread's namespace, like a switch joins a port without tags
/// and one with tags: frames from `plain` get the tag of this VLAN, and frames from `tagged` lose
/// theirs. Without a VLAN they pass unchanged. This lasts until both descriptors are closed.
pub fn join(plain: &str, tagged: &str, vlan: Option<u16>) -> io::Result<[OwnedFd; 2]> {
    let push = |vlan: u16| {
        let tag = [Instruction::set(2, VLAN_PROTOCOL), Instruction::set(3, vlan.into())];
        tag.into_iter().chain([Instruction::call(SKB_VLAN_PUSH)]).collect()
    };
    let pop = |_| vec![Instruction::call(SKB_VLAN_POP)];
    let pass = |from: &str, to: &str, change: Option<Vec<Instruction>>| {
        let mut program = change.unwrap_or_default();
        program.extend([Instruction::set(1, index(to)? as i32), Instruction::set(2, 0)]);
        program.extend([Instruction::call(REDIRECT), Instruction::EXIT]);
        attach_at(&load_program(BPF_PROG_TYPE_SCHED_CLS, &program)?, from, BPF_TCX_INGRESS, 0)
    };
    Ok([pass(plain, tagged, vlan.map(push))?, pass(tagged, plain, vlan.map(pop))?])
}

/// Puts packets that leave an interface of the calling thread's namespace into this VLAN, and
/// removes the tag of packets that come in there, like an interface of this VLAN. This lasts until
/// both descriptors are closed.
pub fn tag(interface: &str, vlan: u16) -> io::Result<[OwnedFd; 2]> {
    let push = [
        // if it has a tag, skip the call
        Instruction::new(0x61, 0x12, VLAN_PRESENT, 0),
        Instruction::new(0x55, 0x02, 3, 0),
        Instruction::set(2, VLAN_PROTOCOL),
        Instruction::set(3, vlan.into()),
        Instruction::call(SKB_VLAN_PUSH),
        Instruction::answer(TCX_NEXT),
        Instruction::EXIT,
    ];
    let pop = [Instruction::call(SKB_VLAN_POP), Instruction::answer(TCX_NEXT), Instruction::EXIT];
    let [push, pop] = [&push[..], &pop].map(|code| load_program(BPF_PROG_TYPE_SCHED_CLS, code));
    Ok([
        attach_at(&push?, interface, BPF_TCX_EGRESS, 0)?,
        attach_at(&pop?, interface, BPF_TCX_INGRESS, 0)?,
    ])
}

fn load_program(prog_type: u32, program: &[Instruction]) -> io::Result<OwnedFd> {
    let attributes = ProgLoad {
        prog_type,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
    };
    // SAFETY: BPF_PROG_LOAD reads a ProgLoad; the program and the licence that it points to outlive
    // the call.
    unsafe { bpf(BPF_PROG_LOAD, &attributes) }
}

/// Attaches a program to an interface of the calling thread's namespace, in the driver. It stays
/// until the returned descriptor is closed.
pub fn attach(program: &OwnedFd, interface: &str) -> io::Result<OwnedFd> {
    attach_at(program, interface, BPF_XDP, XDP_FLAGS_DRV_MODE)
}

fn attach_at(
    program: &OwnedFd,
    interface: &str,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let attributes = LinkCreate {
        prog_fd: program.as_raw_fd() as u32,
        target_ifindex: index(interface)?,
        attach_type,
        flags,
    };
    // SAFETY: BPF_LINK_CREATE reads a LinkCreate, which has no pointers.
    unsafe { bpf(BPF_LINK_CREATE, &attributes) }
}

fn index(interface: &str) -> io::Result<u32> {
    let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"))?;
    index.trim().parse().map_err(io::Error::other)
}

/// The bpf(2) system call, for commands that return a descriptor.
///
/// # Safety
///
/// `attributes` has the type that `command` reads, and what it points to is valid during the call.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller promises valid attributes; the kernel reads no more than the given size.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>())
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a result that is not negative is a descriptor that the kernel has just opened for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AGGREGATOR_ADDRESS, Mode, Rack, RackOptions};
    use std::{net::UdpSocket, time::Duration};

    const XDP_TX: i32 = 3;

    /// The aggregator answers with XDP_TX; a worker's end must accept such frames.
    #[test]
    fn frames_that_xdp_sends_into_a_worker_arrive() {
        crate::needs_racks!();
        let rack =
            Rack::new(RackOptions { workers: 1, mode: Mode::Native, ..RackOptions::default() })
                .expect("a rack");
        let worker = rack.worker(0);
        let socket = worker.run(|| UdpSocket::bind("0.0.0.0:0")).expect("bind");
        // The first datagram waits for ARP, which the program that mirrors frames would break.
        let switch =
            rack.switch().run(|| UdpSocket::bind((AGGREGATOR_ADDRESS, 5000))).expect("bind");
        switch.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket.send_to(b"resolve", (AGGREGATOR_ADDRESS, 5000)).unwrap();
        switch.recv(&mut [0; 16]).expect("the datagram arrives");

        let _mirror = rack.switch().run(|| attach(&load(XDP_TX)?, "p0")).expect("attach");
        let received = || {
            let path = "/sys/class/net/eth0/statistics/rx_packets";
            worker
                .run(move || std::fs::read_to_string(path))
                .unwrap()
                .trim()
                .parse::<u32>()
                .unwrap()
        };
        let before = received();
        for _ in 0..100 {
            socket.send_to(b"hello", (AGGREGATOR_ADDRESS, 5000)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
        // A frame of the network's own (IPv6 has some) may come in addition.
        let mirrored = received() - before;
        assert!((100..110).contains(&mirrored), "{mirrored} of 100 frames came back");
    }
}
