//! XDP programs of two instructions, made by hand, so that no compiler for BPF is needed to build a
//! rack.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// The action that hands a frame on to the network stack.
pub const XDP_PASS: i32 = 2;

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

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

/// Loads a program that answers `action` to every frame.
pub fn load(action: i32) -> io::Result<OwnedFd> {
    let program = [
        Instruction { code: 0xb7, registers: 0, offset: 0, immediate: action }, // r0 = action
        Instruction { code: 0x95, registers: 0, offset: 0, immediate: 0 },      // exit
    ];
    let attributes = ProgLoad {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
    };
    // SAFETY: BPF_PROG_LOAD reads a ProgLoad; the program and the licence that it points to outlive
    // the call.
    unsafe { bpf(BPF_PROG_LOAD, &attributes) }
}

/// Attaches a program to an interface of the calling thread's namespace, in the driver. It stays
/// until the descriptor that is returned is closed.
pub fn attach(program: &OwnedFd, interface: &str) -> io::Result<OwnedFd> {
    let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"))?;
    let attributes = LinkCreate {
        prog_fd: program.as_raw_fd() as u32,
        target_ifindex: index.trim().parse().map_err(io::Error::other)?,
        attach_type: BPF_XDP,
        flags: XDP_FLAGS_DRV_MODE,
    };
    // SAFETY: BPF_LINK_CREATE reads a LinkCreate, in which there are no pointers.
    unsafe { bpf(BPF_LINK_CREATE, &attributes) }
}

/// The bpf(2) system call, for those of its commands that return a descriptor.
///
/// # Safety
///
/// `attributes` is what `command` reads, and what it points to is valid during the call.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller vouches for the attributes; the kernel reads no more than the size that it
    // is told.
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
    use crate::{AGGREGATOR_ADDRESS, Mode, Rack, RackOptions, can_build_racks};
    use std::{net::UdpSocket, time::Duration};

    const XDP_TX: i32 = 3;

    /// The aggregator answers with XDP_TX; a worker's end must take such frames.
    #[test]
    fn frames_that_xdp_sends_into_a_worker_arrive() {
        if !can_build_racks("frames_that_xdp_sends_into_a_worker_arrive") {
            return;
        }
        let rack =
            Rack::new(RackOptions { workers: 1, mode: Mode::Native, ..RackOptions::default() })
                .expect("a rack");
        let worker = rack.worker(0);
        let socket = worker.run(|| UdpSocket::bind("0.0.0.0:0")).expect("bind");
        // The first datagram waits for ARP, which the mirror would break.
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
