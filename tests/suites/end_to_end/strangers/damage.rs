//! A packet that looks like one of another call, though all ranks make the same: as damage does on
//! the way into a data plane that adds before it verifies. Here the check word is made to fit.

use std::sync::{Arc, Barrier};
use std::thread::sleep;
use std::time::{Duration, Instant};

use switchml_rack::{AGGREGATOR_ADDRESS, Mode, in_both_modes};
use switchml_worker::{Error, ReduceOp, control};

use super::sniffer::Sniffer;
use crate::{Cluster, PATIENCE};
use switchml_rack::raw_socket::{ALL, RawSocket};

in_both_modes! {
    a_damaged_packet_ends_the_job_and_blames_nobody,
}

const RANKS: usize = 2;

fn a_damaged_packet_ends_the_job_and_blames_nobody(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let sniffers = [0, 1].map(|rank| {
        Sniffer::start(RawSocket::open(cluster.rack.worker(rank), ALL), AGGREGATOR_ADDRESS)
    });
    let of_rank_1 = RawSocket::open(cluster.rack.worker(1), ALL);
    let damage = move || {
        sniffers.iter().for_each(Sniffer::wait);
        let own = sniffers[1].contribution();
        // Rank 0 is in its second call, and rank 1 is not.
        let begin = Instant::now();
        let outstanding = loop {
            let newest = sniffers[0].contribution().packet;
            if newest.fingerprint != own.packet.fingerprint {
                break newest;
            }
            assert!(begin.elapsed() < PATIENCE, "rank 0 makes no second call");
            sleep(Duration::from_millis(1));
        };
        let fingerprint = outstanding.fingerprint ^ 1;
        let damaged = switchml_test_support::frame::Packet {
            rank: 1,
            fingerprint,
            aux: own.packet.aux,
            ..outstanding
        };
        of_rank_1.send(&own.envelope.bytes(&damaged.bytes()));
    };
    let damaged = Arc::new(Barrier::new(RANKS + 1));
    let damager = std::thread::spawn({
        let damaged = Arc::clone(&damaged);
        move || {
            damage();
            damaged.wait();
        }
    });
    let errors = cluster.run_ranks(RANKS, "damage", move |rank, builder| {
        let communicator = builder.deadline(PATIENCE).connect().unwrap();
        communicator.all_reduce(&mut [1i32; 8], ReduceOp::Sum).unwrap();
        let second = if rank == 0 {
            communicator.all_reduce_start(vec![1i32; 9], ReduceOp::Sum).ok()
        } else {
            None
        };
        damaged.wait();
        match second {
            Some(handle) => handle.wait().map(drop).unwrap_err(),
            None => communicator.all_reduce(&mut [1i32; 9], ReduceOp::Sum).map(drop).unwrap_err(),
        }
    });
    damager.join().unwrap();
    for error in errors {
        let Error::Control(control::Error::Aborted { reason, ranks }) = &error else {
            panic!("{error:?}")
        };
        assert!(reason.starts_with("a packet was damaged on its way to the aggregator"), "{error}");
        assert!(reason.contains("call 2 is all_reduce(sum, i32, 9)"), "{error}");
        assert_eq!(ranks, &[0u16; 0], "{error}");
    }
}
