//! The sockets, on loopback.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

/// Loopback over either kind of IP.
const EITHER: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// A socket in the aggregator's place, and a transport to it.
fn pair(group: Option<SocketAddrV4>) -> (UdpSocket, Udp, Waker) {
    pair_over(EITHER[0], group)
}

fn pair_over(ip: IpAddr, group: Option<SocketAddrV4>) -> (UdpSocket, Udp, Waker) {
    let aggregator = UdpSocket::bind((ip, 0)).unwrap();
    aggregator.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = aggregator.local_addr().unwrap();
    let waker = Waker::new(&Arc::default());
    let udp = Udp::open(address, group, waker.clone(), None).unwrap();
    (aggregator, udp, waker)
}

/// Sends packets of these sizes, each filled with its number, and returns the packets that the
/// other side gets.
fn sent(ip: IpAddr, sizes: &[usize]) -> Vec<(usize, u8)> {
    let (aggregator, mut udp, _) = pair_over(ip, None);
    for (number, size) in sizes.iter().enumerate() {
        udp.packet(*size).unwrap().fill(number as u8);
    }
    udp.flush().unwrap();
    udp.flush().unwrap();
    let mut buffer = [0; 65_535];
    sizes
        .iter()
        .map(|_| {
            let len = aggregator.recv(&mut buffer).unwrap();
            assert!(buffer[..len].iter().all(|byte| *byte == buffer[0]));
            (len, buffer[0])
        })
        .collect()
}

#[test]
fn packets_arrive_whole_and_in_order_however_they_are_batched() {
    // More than a batch, but not more than a default socket buffer holds.
    let many = vec![1440; 60];
    for sizes in [
        &[32][..],
        &many,
        // A shorter one ends a batch, a longer one starts another.
        &[1440, 1440, 160, 160, 160, 1440, 32, 3104, 3104, 32, 32, 32, 1440, 32],
        // The largest packet that loopback's MTU of 65,536 bytes takes over IPv6.
        &[65_488, 1],
    ] {
        let expected: Vec<_> =
            sizes.iter().zip(0..).map(|(size, number)| (*size, number)).collect();
        for ip in EITHER {
            assert_eq!(sent(ip, sizes), expected, "{ip}");
        }
    }
}

#[test]
fn a_batch_is_one_run_of_equal_packets() {
    let mut batch = Batch { bytes: vec![0; 1000].into(), len: 0, segment: 0, packets: 0 };
    assert!(batch.has_room(900, 3));
    batch.push(300);
    assert!(batch.has_room(300, 3) && batch.has_room(200, 3));
    assert!(!batch.has_room(301, 3), "longer than the first");
    assert!(!batch.has_room(HEADER_LEN, 3), "a header alone");
    assert!(!batch.has_room(300, 1), "more packets than the system takes");
    batch.push(300);
    batch.push(300);
    assert!(!batch.has_room(300, 9), "more bytes than a datagram has");
    batch.push(100);
    assert!(!batch.has_room(0, 9), "behind a shorter one");
}

/// The packets that the transport gets within a while, and whether they met congestion.
fn received(udp: &mut Udp, count: usize) -> Vec<(Vec<u8>, bool)> {
    let begin = Instant::now();
    let mut packets = Vec::new();
    while packets.len() < count && begin.elapsed() < PATIENCE {
        udp.wait(Some(PATIENCE), None).unwrap();
        udp.receive(&mut |packet, congested| packets.push((packet.to_vec(), congested))).unwrap();
    }
    packets
}

#[test]
fn replies_and_congestion_marks() {
    for ip in EITHER {
        let (aggregator, mut udp, _) = pair_over(ip, None);
        assert_eq!(udp.receive(&mut |_, _| panic!("nothing was sent")).unwrap(), 0);
        udp.packet(4).unwrap().copy_from_slice(b"ping");
        udp.flush().unwrap();
        let (_, sender) = aggregator.recv_from(&mut [0; 4]).unwrap();
        aggregator.send_to(b"plain", sender).unwrap();
        let (socket, ce) = (socket2::SockRef::from(&aggregator), EcnCodepoint::Ce as u32);
        match ip {
            IpAddr::V4(_) => socket.set_tos_v4(ce).unwrap(),
            IpAddr::V6(_) => socket.set_tclass_v6(ce).unwrap(),
        }
        aggregator.send_to(b"marked", sender).unwrap();
        let expected = [(b"plain".to_vec(), false), (b"marked".to_vec(), true)];
        assert_eq!(received(&mut udp, 2), expected, "{ip}");
    }
}

/// Merged packets are split again, and packets from other addresses are not received.
#[test]
fn superpackets_over_ipv6_come_apart_and_strangers_do_not_come() {
    let (aggregator, mut udp, _) = pair_over(EITHER[1], None);
    let own = udp.data.socket.local_addr().unwrap().as_socket().unwrap();
    let to_own = SocketAddr::new(EITHER[1], own.port());
    let stranger = UdpSocket::bind((EITHER[1], 0)).unwrap();
    stranger.send_to(b"foreign", to_own).unwrap();
    let offloads = UdpSocketState::new(UdpSockRef::from(&aggregator)).unwrap();
    let contents = [[1; 1440], [2; 1440], [3; 1440]].concat();
    let transmit = Transmit {
        destination: to_own,
        ecn: Some(EcnCodepoint::Ce),
        contents: &contents,
        segment_size: Some(1440),
        src_ip: None,
    };
    offloads.try_send(UdpSockRef::from(&aggregator), &transmit).unwrap();
    let expected = [1, 2, 3].map(|number| (vec![number; 1440], true));
    assert!(received(&mut udp, 3) == expected, "three packets, all marked");
}

#[test]
fn the_group_is_heard_from_the_aggregator_alone() {
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, 77, 1), 47_701);
    let (aggregator, mut udp, _) = pair(Some(group));
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    // The aggregator's port, of another address.
    let namesake = UdpSocket::bind(("127.0.0.2", aggregator.local_addr().unwrap().port())).unwrap();
    for (socket, text) in [(&stranger, "foreign"), (&namesake, "foreign"), (&aggregator, "result")]
    {
        socket2::SockRef::from(socket).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
        socket.send_to(text.as_bytes(), group).unwrap();
    }
    assert_eq!(received(&mut udp, 1), [(b"result".to_vec(), false)]);
    assert_eq!(udp.foreign(), 2);
    // The data socket is connected: the kernel drops packets from other addresses.
    let own = udp.data.socket.local_addr().unwrap().as_socket().unwrap();
    stranger.send_to(b"foreign", own).unwrap();
    namesake.send_to(b"foreign", own).unwrap();
    aggregator.send_to(b"reply", own).unwrap();
    assert_eq!(received(&mut udp, 1), [(b"reply".to_vec(), false)]);
}

#[test]
fn two_ranks_of_one_host_share_the_group() {
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, 77, 2), 47_702);
    let (aggregator, mut first, _) = pair(Some(group));
    let mut second =
        Udp::open(first.aggregator(), Some(group), Waker::new(&Arc::default()), None).unwrap();
    socket2::SockRef::from(&aggregator).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    aggregator.send_to(b"result", group).unwrap();
    for udp in [&mut first, &mut second] {
        assert_eq!(received(udp, 1), [(b"result".to_vec(), false)]);
    }
}

#[test]
fn waiting_ends_by_time_or_waker() {
    let (_aggregator, mut udp, waker) = pair(None);
    let begin = Instant::now();
    udp.wait(Some(Duration::from_millis(30)), None).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(30));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            waker.wake();
        });
        udp.wait(None, None).unwrap();
    });
    // A wake-up before the wait is not lost, and counts once.
    waker.wake();
    udp.wait(None, None).unwrap();
    let begin = Instant::now();
    udp.wait(Some(Duration::from_millis(30)), None).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(30));
}

#[test]
fn a_refusing_host_is_silence() {
    for ip in EITHER {
        refuse(ip);
    }
}

fn refuse(ip: IpAddr) {
    let (aggregator, mut udp, _) = pair_over(ip, None);
    drop(aggregator);
    for _ in 0..5 {
        udp.packet(32).unwrap();
        udp.flush().unwrap();
        udp.wait(Some(Duration::from_millis(5)), None).unwrap();
        assert_eq!(udp.receive(&mut |_, _| panic!("nobody is there")).unwrap(), 0);
    }
}

#[test]
fn loopback_takes_large_packets() {
    let (_aggregator, udp, _) = pair(None);
    // The loopback interface's MTU is 65536 bytes, more than a datagram can have.
    assert_eq!(udp.largest_packet(), 65_507);
    let (_aggregator, over_ipv6, _) = pair_over(EITHER[1], None);
    // The MTU less 40 bytes of IP and 8 of UDP.
    assert_eq!(over_ipv6.largest_packet(), 65_488);
    // 45 packets of 1440 bytes are 64,800, 21 of 3104 are 65,184.
    assert_eq!((udp.batch(1440), udp.batch(3104), udp.batch(65_507)), (45, 21, 1));
    assert!(udp.receive_room(1440) >= 20);
}
