//! A BPF program in front of the one under test, made by hand, which makes a contribution
//! repeatable.
#![allow(unsafe_code)]

use aya::maps::{Map, MapData, ProgramArray};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_PROG_ARRAY;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use switchml_protocol::root::slot::LockedSlot;
use switchml_protocol::root::slot::Set;

use switchml_test_support::kernel::{FIRST_SLOT, Kernel, SLOTS};

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_TEST_RUN: libc::c_int = 10;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const MAP_LOOKUP: i32 = 1;
const CPU_NUMBER: i32 = 8;
const TAIL_CALL: i32 = 12;

/// A program that resets the slot of its CPU ([`slot_of`]) so that only rank 0 is in its even set,
/// and then calls the program under test.
pub struct Driver {
    program: OwnedFd,
    _called: ProgramArray<MapData>,
}

/// The slot of the job that a CPU has.
pub fn slot_of(cpu: usize) -> u16 {
    const { assert!(SLOTS.is_power_of_two()) };
    cpu as u16 % SLOTS as u16
}

/// One instruction, as in `struct bpf_insn`: opcode, registers (source, destination), offset,
/// immediate.
#[repr(C)]
struct Instruction(u8, u8, i16, i32);

/// The part of `union bpf_attr` that BPF_PROG_LOAD needs.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    /// The log, the kernel's version, flags, name and device.
    unused: [u32; 11],
    expected_attach_type: u32,
}

/// The part of `union bpf_attr` that BPF_PROG_TEST_RUN needs.
#[repr(C)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

impl Driver {
    /// The driver of a loaded program.
    pub fn new(kernel: &Kernel) -> io::Result<Self> {
        let (key, value) = (size_of::<u32>() as u32, size_of::<u32>() as u32);
        let definition =
            aya_obj::Map::new_from_params(BPF_MAP_TYPE_PROG_ARRAY as u32, key, value, 1, 0);
        let data = MapData::create(definition, "called", None).map_err(io::Error::other)?;
        let called = data.fd().as_fd().as_raw_fd();
        let map = Map::from_map_data(data).map_err(io::Error::other)?;
        let mut programs = ProgramArray::try_from(map).map_err(io::Error::other)?;
        programs
            .set(0, kernel.program().fd().map_err(io::Error::other)?, 0)
            .map_err(io::Error::other)?;

        let (mask, first) = (SLOTS as i32 - 1, FIRST_SLOT as i32);
        let set = offset_of!(LockedSlot, slot.sets);
        let count = (set + offset_of!(Set, head.count)) as i16;
        let seen = (set + offset_of!(Set, seen)) as i16;
        let instructions = [
            Instruction(0xBF, 0x16, 0, 0),                 // r6 = context
            Instruction(0x85, 0, 0, CPU_NUMBER),           // r0 = the CPU
            Instruction(0x57, 0x00, 0, mask),              // r0 &= mask
            Instruction(0x07, 0x00, 0, first),             // r0 += first
            Instruction(0x63, 0x0A, -4, 0),                // *(u32 *)(r10 - 4) = r0
            Instruction(0xBF, 0xA2, 0, 0),                 // r2 = r10
            Instruction(0x07, 0x02, 0, -4),                // r2 -= 4
            Instruction(0x18, 0x11, 0, kernel.slots_fd()), // r1 = SLOTS
            Instruction(0, 0, 0, 0),                       //   (upper half)
            Instruction(0x85, 0, 0, MAP_LOOKUP),           // r0 = the element
            Instruction(0x15, 0x00, 7, 0),                 // if there is none, leave
            Instruction(0x62, 0x00, count, 1),             // count = 1
            Instruction(0x62, 0x00, seen, 1),              // seen = {0}
            Instruction(0xBF, 0x61, 0, 0),                 // r1 = context
            Instruction(0x18, 0x12, 0, called),            // r2 = programs
            Instruction(0, 0, 0, 0),                       //   (upper half)
            Instruction(0xB7, 0x03, 0, 0),                 // r3 = 0
            Instruction(0x85, 0, 0, TAIL_CALL),            // go to the program
            Instruction(0xB7, 0x00, 0, 0),                 // r0 = XDP_ABORTED
            Instruction(0x95, 0, 0, 0),                    // leave
        ];
        let mut attributes = ProgLoad {
            prog_type: BPF_PROG_TYPE_XDP,
            insn_cnt: instructions.len() as u32,
            insns: instructions.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            unused: [0; 11],
            // The attach type of the called program.
            expected_attach_type: BPF_XDP,
        };
        // SAFETY: BPF_PROG_LOAD reads a ProgLoad; the program and the licence that it points to
        // outlive the call.
        let fd = unsafe { bpf(BPF_PROG_LOAD, &mut attributes) }?;
        // SAFETY: BPF_PROG_LOAD returns a descriptor that nobody else owns.
        Ok(Self { program: unsafe { OwnedFd::from_raw_fd(fd) }, _called: programs })
    }

    /// Runs a frame `repeat` times. Returns the nanoseconds of one run, and the verdict.
    pub fn run(&self, frame: &[u8], repeat: u32) -> io::Result<(u32, u32)> {
        let mut attributes = TestRun {
            prog_fd: self.program.as_raw_fd() as u32,
            retval: 0,
            data_size_in: frame.len() as u32,
            data_size_out: 0,
            data_in: frame.as_ptr() as u64,
            data_out: 0,
            repeat,
            duration: 0,
        };
        // SAFETY: BPF_PROG_TEST_RUN reads and writes a TestRun; the frame that it points to
        // outlives the call.
        unsafe { bpf(BPF_PROG_TEST_RUN, &mut attributes) }?;
        Ok((attributes.duration, attributes.retval))
    }
}

/// The bpf(2) system call.
///
/// # Safety
///
/// `attributes` is the structure that `command` reads and writes; its pointers are valid during the
/// call.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the caller guarantees the attributes; the kernel uses at most the size that it is
    // given.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
