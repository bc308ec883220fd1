//! The programs in the kernel: packets through BPF_PROG_TEST_RUN, and through a rack. The loaded
//! programs, and the frames that go in, are of [`switchml_test_support`].
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`superpackets`] | any cut of packets into superpackets; mixed outcomes in one |
//! | [`admission`] | who is let in, and what is passed on or dropped |
//! | [`combiner`] | a combiner's programs: who is let in, what leaves, how it is addressed |
//! | [`roce`] | messages of RoCEv2 in XDP |
//! | [`roce_copies`] | each rank of a job gets RESULTs as it sends |
//! | [`tags`] | VLAN tags in frames |
//! | [`forged`] | forged and replayed packets, with and without tags |
//! | [`slots`] | what the vectors do not test of slots: every size, values, neighbours |
//! | [`frames`] | the answers, byte by byte |
//! | [`differential`] | a random trace through the kernel and through the protocol crate on the host |
//! | [`contention`] | two CPUs on the same slot, or cell |
//! | [`cpu`] | the CPU of a thread |
//! | [`libbpf`] | the program and its maps, loaded by libbpf |
//! | [`losses`] | packets that are lost on purpose, for tests |
//! | [`loaders`] | libbpf loads the object, too |
//! | [`delivery`] | a RESULT reaches every port of the group |
//! | [`copies`] | each rank that the group does not reach gets its own, correctly addressed copy |
//! | [`speed`] | nanoseconds per packet, on one CPU and on two |
//! | [`driver`] | runs one contribution again and again, for [`speed`] |

mod admission;
mod combiner;
mod contention;
mod copies;
mod cpu;
mod delivery;
mod differential;
mod driver;
mod forged;
mod frames;
mod libbpf;
mod loaders;
mod losses;
mod roce;
mod roce_copies;
mod signals;
mod slots;
mod speed;
mod superpackets;
mod tags;
