//! Several racks: do they carry packets as drawn, and are their uplinks counted and shaped?

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use switchml_rack::{Carried, Error, Mode, Namespace, RackOptions, Racks, Shaping, needs_racks};

const SOON: Duration = Duration::from_secs(5);

fn racks(racks: usize, workers: usize, mode: Mode) -> Racks {
    Racks::new(racks, RackOptions { workers, mode, ..RackOptions::default() }).expect("racks")
}

fn socket(namespace: &Namespace, address: IpAddr) -> UdpSocket {
    let socket = namespace.run(move || UdpSocket::bind((address, 5000))).expect("bind");
    socket.set_read_timeout(Some(SOON)).expect("a timeout");
    socket
}

/// Sends `payload` and returns who it seemed to come from at the other end.
fn send(from: &UdpSocket, to: &UdpSocket, payload: &[u8]) -> SocketAddr {
    from.send_to(payload, to.local_addr().unwrap()).expect("send");
    let mut buffer = [0; 9000];
    let (length, sender) = to.recv_from(&mut buffer).expect("the datagram arrives");
    assert_eq!(&buffer[..length], payload);
    sender
}

#[test]
fn racks_that_do_not_fit_are_refused() {
    let build = |racks, options| Racks::new(racks, options).map(drop).unwrap_err().to_string();
    let four = RackOptions::default();
    assert_eq!(
        build(5, four.clone()),
        "5 racks of 4 workers in all were asked for; each rack has one at least"
    );
    assert!(matches!(Racks::check(0, &four), Err(Error::Racks { racks: 0, workers: 4 })));
    assert_eq!(
        build(2, RackOptions { own_host: true, ..four }),
        "several racks are stars of Linux hosts without VLANs; leave out the switch host as a \
         worker, or have one rack"
    );
}

#[test]
fn workers_reach_the_root_their_host_and_each_other() {
    needs_racks!();
    for mode in [Mode::Auto, Mode::Native] {
        let racks = racks(2, 5, mode);
        assert_eq!(racks.ranks_in(0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(racks.host_ports(1), ["p3", "p4", "uplink"]);
        let addresses: Vec<_> = (0..5).map(|rank| racks.worker_address(rank)).collect();
        let drawn = ["10.88.1.1", "10.88.1.2", "10.88.1.3", "10.88.2.1", "10.88.2.2"];
        assert_eq!(addresses, drawn.map(|address| address.parse::<IpAddr>().unwrap()));
        let workers: Vec<_> = racks
            .workers()
            .iter()
            .zip(&addresses)
            .map(|(worker, address)| socket(worker, *address))
            .collect();
        let root = socket(racks.root(), racks.root_address());
        let hosts = [0, 1].map(|rack| socket(&racks.hosts()[rack], racks.host_address(rack)));
        for (rank, worker) in workers.iter().enumerate() {
            let address = SocketAddr::new(addresses[rank], 5000);
            assert_eq!(send(worker, &root, b"up"), address);
            assert_eq!(send(&root, worker, b"down"), "10.88.0.254:5000".parse().unwrap());
            assert_eq!(send(worker, &hosts[racks.rack_of(rank)], b"host"), address);
            assert_eq!(send(worker, &workers[(rank + 1) % 5], b"across"), address);
        }
        // A combiner's way to its parent and back, from the address that the root sees.
        let uplink: IpAddr = "10.88.0.2".parse().unwrap();
        let uplink = socket(&racks.hosts()[1], uplink);
        assert_eq!(send(&uplink, &root, b"up"), "10.88.0.2:5000".parse().unwrap());
        assert_eq!(send(&root, &uplink, b"down"), "10.88.0.254:5000".parse().unwrap());
    }
}

#[test]
fn uplinks_are_counted_each_way() {
    needs_racks!();
    let racks = racks(2, 2, Mode::Auto);
    let sockets: Vec<_> =
        (0..2).map(|rank| socket(&racks.workers()[rank], racks.worker_address(rank))).collect();
    // So that neighbours know each other.
    send(&sockets[0], &sockets[1], b"hello");
    send(&sockets[1], &sockets[0], b"hello");
    let before = racks.carried().unwrap();
    const COUNT: u64 = 100;
    (0..COUNT).for_each(|_| _ = send(&sockets[0], &sockets[1], &[7; 1472]));
    let after = racks.carried().unwrap();
    let more = |rack: usize| Carried {
        up: after[rack].up - before[rack].up,
        down: after[rack].down - before[rack].down,
    };
    // Now and then ARP checks that a neighbour is still there, with a frame of 42 bytes.
    let (bytes, few) = (COUNT * 1514, 420);
    for (counted, expected) in
        [(more(0).up, bytes), (more(0).down, 0), (more(1).up, 0), (more(1).down, bytes)]
    {
        assert!((expected..=expected + few).contains(&counted), "{counted}, not {expected}");
    }
}

#[test]
fn shaped_uplinks_bound_what_racks_exchange() {
    needs_racks!();
    const UPLINK: u64 = 20_000_000;
    let racks = racks(2, 2, Mode::Auto);
    let _shaping = Shaping::of_racks(&racks, 10 * UPLINK, UPLINK).unwrap();
    let sockets: Vec<_> =
        (0..2).map(|rank| socket(&racks.workers()[rank], racks.worker_address(rank))).collect();
    send(&sockets[0], &sockets[1], b"hello");
    let before = racks.carried().unwrap();
    let begin = std::time::Instant::now();
    // More than the bucket and the queue hold, so the rate limits what passes.
    while begin.elapsed() < Duration::from_millis(500) {
        let _ = sockets[0].send_to(&[7; 1472], sockets[1].local_addr().unwrap());
    }
    let bits = (racks.carried().unwrap()[0].up - before[0].up) * 8;
    let seconds = begin.elapsed().as_secs_f64();
    // The bucket is full at first: 128 KiB.
    let most = UPLINK as f64 * seconds + 8.0 * f64::from(128 << 10);
    assert!((bits as f64) < 1.02 * most, "{bits} bits in {seconds} s");
    assert!(bits as f64 > 0.9 * UPLINK as f64 * seconds, "{bits} bits in {seconds} s");
}
