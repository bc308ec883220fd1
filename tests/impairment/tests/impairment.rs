//! The impairment makes the requested faults, and the same ones again for the same seed.

use std::net::UdpSocket;
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use switchml_rack::{
    AGGREGATOR_ADDRESS, Binaries, Direction, FaultCounts, Faults, Impairment, Namespace, Rack,
    RackOptions, needs_racks,
};

/// The data plane's UDP port: packets to it or from it are impaired.
const DATA_PORT: u16 = 48864;
const OTHER_PORT: u16 = 5000;
const WORKER_PORT: u16 = 6000;
/// Bytes of a packet's header, which the payload follows.
const HEADER_LEN: usize = 32;
/// Every byte of a packet after its number.
const PAYLOAD: u8 = 0x5A;
/// Far longer than a frame takes.
const QUIET: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(10);

/// Two sockets at the ends of one link.
struct Link {
    binaries: Binaries,
    rack: Rack,
    switch: UdpSocket,
    worker: UdpSocket,
}

impl Link {
    fn new() -> Self {
        let rack =
            Rack::new(RackOptions { workers: 1, wires: true, ..RackOptions::default() }).unwrap();
        let bind = |namespace: &Namespace, address| {
            let socket = namespace.run(move || UdpSocket::bind(address)).unwrap();
            socket.set_read_timeout(Some(QUIET)).unwrap();
            // On a busy machine the socket may not be read for a while.
            set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
            socket
        };
        let switch = bind(rack.switch(), (AGGREGATOR_ADDRESS, DATA_PORT));
        let worker = bind(rack.worker(0), (Rack::worker_address(0), WORKER_PORT));
        Self { binaries: Binaries::for_test().unwrap(), rack, switch, worker }
    }

    fn impair(&self, seed: u64, direction: Direction, faults: Faults) -> Impairment {
        let faults = |_, here| if here == direction { faults } else { Faults::default() };
        Impairment::in_rack(&self.binaries, &self.rack, seed, faults).unwrap()
    }

    /// Makes both ends learn each other's MAC. Without this, too many frames might wait for ARP,
    /// and be lost.
    fn resolve(&self) {
        let other =
            self.rack.switch().run(|| UdpSocket::bind((AGGREGATOR_ADDRESS, OTHER_PORT))).unwrap();
        self.worker.send_to(&[], (AGGREGATOR_ADDRESS, OTHER_PORT)).unwrap();
        other.set_read_timeout(Some(PATIENCE)).unwrap();
        other.recv(&mut []).unwrap();
        other.send_to(&[], (Rack::worker_address(0), WORKER_PORT)).unwrap();
        self.worker.recv(&mut []).unwrap();
    }

    /// Sends packets in one direction. Returns the packets that arrive, and the program's counts.
    fn send(
        &self,
        seed: u64,
        direction: Direction,
        faults: Faults,
        packets: u32,
    ) -> (Vec<Vec<u8>>, FaultCounts) {
        let impairment = self.impair(seed, direction, faults);
        let (from, to, address) = match direction {
            Direction::Up => (&self.worker, &self.switch, (AGGREGATOR_ADDRESS, DATA_PORT)),
            Direction::Down => (&self.switch, &self.worker, (Rack::worker_address(0), WORKER_PORT)),
        };
        self.resolve();
        (0..packets).for_each(|number| _ = from.send_to(&packet(number), address).unwrap());
        let arrived = receive(to);
        let counts = impairment.stop().unwrap();
        assert_eq!(counts.len(), 1);
        let [up, down] = counts[0];
        let (here, there) = if direction == Direction::Up { (up, down) } else { (down, up) };
        assert_eq!((here.frames, there, here.failed), (packets.into(), FaultCounts::default(), 0));
        (arrived, here)
    }
}

/// Receives packets until no more arrive.
fn receive(socket: &UdpSocket) -> Vec<Vec<u8>> {
    let mut buffer = [0; 2048];
    let next = || socket.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec());
    std::iter::from_fn(next).collect()
}

/// A packet of 64 bytes that begins with its number.
fn packet(number: u32) -> Vec<u8> {
    [&number.to_be_bytes()[..], &[PAYLOAD; 60]].concat()
}

fn numbers(packets: &[Vec<u8>]) -> Vec<u32> {
    packets.iter().map(|packet| u32::from_be_bytes(packet[..4].try_into().unwrap())).collect()
}

const FRAMES: u32 = 1000;

#[test]
fn without_faults_all_pass_in_order() {
    needs_racks!();
    let link = Link::new();
    for direction in [Direction::Up, Direction::Down] {
        let (arrived, counts) = link.send(1, direction, Faults::default(), FRAMES);
        assert!(
            arrived.iter().cloned().eq((0..FRAMES).map(packet)),
            "{direction:?}: {:?}",
            numbers(&arrived)
        );
        assert_eq!(counts, FaultCounts { frames: u64::from(FRAMES), ..FaultCounts::default() });
    }
}

#[test]
fn the_same_seed_loses_the_same_frames() {
    needs_racks!();
    let link = Link::new();
    for direction in [Direction::Up, Direction::Down] {
        let lossy = Faults { loss: 0.2, ..Faults::default() };
        let [first, again, other] = [7, 7, 8].map(|seed| link.send(seed, direction, lossy, FRAMES));
        assert_eq!((numbers(&first.0), first.1), (numbers(&again.0), again.1));
        assert_ne!(numbers(&first.0), numbers(&other.0));
        let (arrived, counts) = first;
        assert_eq!(arrived.len() as u64 + counts.lost, u64::from(FRAMES));
        // 200 expected, with a standard deviation of 12.6.
        assert!((137..=263).contains(&counts.lost), "{counts:?}");
    }
    let (arrived, counts) =
        link.send(1, Direction::Up, Faults { loss: 1.0, ..Faults::default() }, FRAMES);
    assert_eq!((arrived.len(), counts.lost), (0, u64::from(FRAMES)));
}

#[test]
fn duplicated_frames_come_twice() {
    needs_racks!();
    let faults = Faults { duplication: 0.3, ..Faults::default() };
    let (arrived, counts) = Link::new().send(3, Direction::Up, faults, FRAMES);
    let numbers = numbers(&arrived);
    let twice = |number: &u32| numbers.iter().filter(|other| *other == number).count() == 2;
    assert!((200..400).contains(&counts.duplicated), "{counts:?}");
    assert_eq!((0..FRAMES).filter(twice).count() as u64, counts.duplicated);
    assert_eq!(numbers.len() as u64, u64::from(FRAMES) + counts.duplicated);
}

#[test]
fn reordered_frames_come_later_and_whole() {
    needs_racks!();
    const DISTANCE: u32 = 10;
    let faults = Faults { reordering: 0.1, distance: DISTANCE, ..Faults::default() };
    let (arrived, counts) = Link::new().send(4, Direction::Up, faults, FRAMES);
    assert!(counts.reordered > 50 && counts.no_room == 0, "{counts:?}");
    // Frames that are still held when the last frame has passed do not come out.
    assert!(counts.reordered - counts.released <= 10, "{counts:?}");
    assert_eq!(arrived.len() as u64, u64::from(FRAMES) - (counts.reordered - counts.released));
    let order = numbers(&arrived);
    let (mut highest, mut late) = (0, 0);
    for (packet, &number) in arrived.iter().zip(&order) {
        assert_eq!(*packet, self::packet(number));
        late += u64::from(number < highest);
        highest = highest.max(number);
        // Each frame releases only one held frame, so frames that wait together wait longer.
        assert!(number + 3 * DISTANCE > highest, "{number} after {highest}");
    }
    assert!(late > counts.released / 2, "{late} late of {}", counts.released);
}

#[test]
fn flips_change_one_bit_of_the_payload() {
    needs_racks!();
    // In direction Down the UDP checksum is left to the receiving side, which accepts the frame.
    // The switch's sockets would drop a damaged packet from a worker.
    let faults = Faults { flips: 0.5, ..Faults::default() };
    let (arrived, counts) = Link::new().send(5, Direction::Down, faults, FRAMES);
    assert_eq!(arrived.len() as u32, FRAMES);
    let mut changed = 0;
    for (number, found) in (0..).zip(&arrived) {
        let bits = found
            .iter()
            .zip(&packet(number))
            .map(|(a, b)| (a ^ b).count_ones())
            .collect::<Vec<_>>();
        assert_eq!(bits[..HEADER_LEN].iter().sum::<u32>(), 0);
        changed += u64::from(bits.iter().sum::<u32>());
    }
    assert!(changed > 300);
    assert_eq!(changed, counts.flipped);
}

#[test]
fn corruption_changes_one_bit_of_the_headers() {
    needs_racks!();
    let faults = Faults { corruption: 1.0, ..Faults::default() };
    let (arrived, counts) = Link::new().send(6, Direction::Down, faults, FRAMES);
    assert_eq!(counts.corrupted, u64::from(FRAMES));
    // The headers have 20 bytes of IP and 8 of UDP, most of which keep a frame from arriving when
    // damaged, and 32 of the packet.
    assert!((400..700).contains(&arrived.len()), "{} arrived", arrived.len());
    // The packet is shorter if the flipped bit was in a length.
    assert!(arrived.iter().all(|found| found.iter().skip(HEADER_LEN).all(|byte| *byte == PAYLOAD)));
    let differs =
        |found: &&Vec<u8>| found.iter().take(HEADER_LEN).skip(4).any(|byte| *byte != PAYLOAD);
    assert!(arrived.iter().filter(differs).count() > 300);
}

#[test]
fn what_is_not_the_protocols_passes() {
    needs_racks!();
    let link = Link::new();
    let lossy =
        Faults { loss: 1.0, duplication: 1.0, corruption: 1.0, flips: 1.0, ..Faults::default() };
    let _impairment = link.impair(1, Direction::Up, lossy);
    let other =
        link.rack.switch().run(|| UdpSocket::bind((AGGREGATOR_ADDRESS, OTHER_PORT))).unwrap();
    other.set_read_timeout(Some(QUIET)).unwrap();
    link.worker.send_to(&packet(1), (AGGREGATOR_ADDRESS, OTHER_PORT)).unwrap();
    let mut buffer = [0; 2048];
    assert_eq!(other.recv(&mut buffer).unwrap(), 64);
    assert!(other.recv(&mut buffer).is_err(), "once");
}
