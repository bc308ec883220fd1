//! A rank that wants RDMA where there is none. `cargo xtask matrix --port rxe` has ranks that use
//! it.

use switchml_worker::Communicator;

use switchml_rack::daemon::Daemon;

#[test]
fn an_aggregator_that_does_not_take_rdma() {
    let daemon = Daemon::start();
    let builder = Communicator::builder().aggregator(&daemon.address).rank(0).world_size(1);
    let error = builder.rdma(true).connect().err().expect("no RDMA").to_string();
    let (before, after) = error.split_once(" at 127.0.0.1:").expect("the aggregator's address");
    assert_eq!(before, "RDMA was asked for and cannot be used: the aggregator");
    assert!(after.ends_with(" does not take it (it has no --rocev2)"), "{error}");
}
