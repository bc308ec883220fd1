//! Drives the library like NCCL: opened at run time, only through its table.

use nccl_net_switchml::abi::net::{Net, Properties};
use nccl_net_switchml::abi::{
    HANDLE_BYTES, HOST_MEMORY, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, Logger,
    REMOTE_ERROR, SUCCESS,
};
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::mem::{offset_of, size_of};
use std::net::TcpStream;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

fn table() -> &'static Net {
    static TABLE: OnceLock<&'static Net> = OnceLock::new();
    TABLE.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let folder: PathBuf = test.parent().unwrap().into();
        // SAFETY: the library does nothing when it is opened; it stays open.
        let library = unsafe { libloading::Library::new(folder.join("libnccl_net_switchml.so")) };
        let library = Box::leak(Box::new(library.unwrap()));
        // SAFETY: the symbol is such a table.
        let table = unsafe { *library.get::<&'static Net>(b"ncclNetPlugin_v8\0").unwrap() };
        // SAFETY: the library has not read the environment yet, and this program reads it only with
        // the standard library, which locks it.
        unsafe { std::env::set_var("NCCL_SOCKET_IFNAME", "=lo") };
        // SAFETY: called like NCCL does.
        assert_eq!(unsafe { (table.init)(Some(logger())) }, SUCCESS);
        table
    })
}

/// Lines that the library logged, of all tests.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" fn log(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    line: *const c_char,
) {
    // SAFETY: the strings are the library's.
    let (format, line) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(line)) };
    let (format, line) = (format.to_str().unwrap(), line.to_str().unwrap());
    LOGGED.lock().unwrap().push(format!("{level} {}", format.replace("%s", line)));
}

/// `log` as NCCL's logger, which takes any values after the format.
fn logger() -> Logger {
    // SAFETY: on the processors that this runs on, one variadic value is passed in the same place
    // as a fixed parameter.
    unsafe { std::mem::transmute(log as *const ()) }
}

/// Whether a line with this begin and end was logged.
fn was_logged(begin: &str, end: &str) -> bool {
    let lines = LOGGED.lock().unwrap();
    lines.iter().any(|line| line.starts_with(begin) && line.ends_with(end))
}

/// A sender and its receiver.
struct Pair {
    sender: *mut c_void,
    receiver: *mut c_void,
}

fn pair() -> Pair {
    let net = table();
    let mut handle = [0_u8; HANDLE_BYTES];
    let (mut listener, mut sender, mut receiver) =
        (null_mut(), null_mut::<c_void>(), null_mut::<c_void>());
    let deadline = Instant::now() + LIMIT;
    // SAFETY: as NCCL calls them.
    unsafe {
        let at = handle.as_mut_ptr().cast();
        assert_eq!((net.listen)(0, at, &raw mut listener), SUCCESS);
        while sender.is_null() || receiver.is_null() {
            assert!(Instant::now() < deadline, "not connected");
            if sender.is_null() {
                assert_eq!((net.connect)(0, at, &raw mut sender, null_mut()), SUCCESS);
            }
            if receiver.is_null() {
                assert_eq!((net.accept)(listener, &raw mut receiver, null_mut()), SUCCESS);
            }
        }
        assert_eq!((net.close_listen)(listener), SUCCESS);
    }
    Pair { sender, receiver }
}

impl Pair {
    fn send(&self, data: &mut [u8], tag: c_int) -> *mut c_void {
        let mut request = null_mut();
        let bytes = c_int::try_from(data.len()).unwrap();
        let at = data.as_mut_ptr().cast();
        // SAFETY: the caller keeps `data` until the request is done.
        let code =
            unsafe { (table().isend)(self.sender, at, bytes, tag, null_mut(), &raw mut request) };
        assert_eq!(code, SUCCESS);
        request
    }

    fn receive(&self, data: &mut [u8], mut tag: c_int) -> *mut c_void {
        let mut request = null_mut();
        let mut bytes = c_int::try_from(data.len()).unwrap();
        let mut at: *mut c_void = data.as_mut_ptr().cast();
        let (at, bytes, tag) = (&raw mut at, &raw mut bytes, &raw mut tag);
        // SAFETY: the caller keeps `data` until the request is done.
        let code = unsafe {
            (table().irecv)(self.receiver, 1, at, bytes, tag, null_mut(), &raw mut request)
        };
        assert_eq!(code, SUCCESS);
        request
    }
}

/// Asks for the requests in turn until all are done; gives their sizes.
fn finish(requests: &[*mut c_void]) -> Vec<c_int> {
    let mut sizes = vec![None; requests.len()];
    let deadline = Instant::now() + LIMIT;
    while sizes.contains(&None) {
        assert!(Instant::now() < deadline, "not done: {sizes:?}");
        for (size, request) in sizes.iter_mut().zip(requests).filter(|(size, _)| size.is_none()) {
            let (mut done, mut bytes) = (0, -1);
            // SAFETY: a request that is not done.
            let code = unsafe { (table().test)(*request, &raw mut done, &raw mut bytes) };
            assert_eq!(code, SUCCESS);
            *size = (done == 1).then_some(bytes);
        }
    }
    sizes.into_iter().flatten().collect()
}

/// Asks until a call fails; gives its code.
fn failure(request: *mut c_void) -> c_int {
    let deadline = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < deadline, "no error");
        let mut done = 0;
        // SAFETY: a request that is not done.
        let code = unsafe { (table().test)(request, &raw mut done, null_mut()) };
        assert_eq!(done, 0, "done instead");
        if code != SUCCESS {
            return code;
        }
    }
}

/// Bytes that differ from message to message and from place to place.
fn pattern(message: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((at * 31 + at / 251 + message * 7) % 256).unwrap()).collect()
}

#[test]
fn the_tables_lie_as_nccl_has_them() {
    assert_eq!(size_of::<Net>(), 19 * 8);
    assert_eq!(offset_of!(Net, isend), 10 * 8);
    assert_eq!(offset_of!(Net, close_listen), 16 * 8);
    assert_eq!(size_of::<Properties>(), 64);
    assert_eq!(offset_of!(Properties, ptr_support), 24);
    assert_eq!(offset_of!(Properties, latency), 40);
    assert_eq!(offset_of!(Properties, device_version), 56);
}

#[test]
fn a_device_takes_the_hosts_memory_alone() {
    let net = table();
    // SAFETY: as NCCL calls them.
    unsafe {
        let mut count = 0;
        assert_eq!((net.devices)(&raw mut count), SUCCESS);
        assert_eq!(count, 1);
        let mut properties: Properties = std::mem::zeroed();
        assert_eq!((net.get_properties)(0, &raw mut properties), SUCCESS);
        assert_eq!(CStr::from_ptr(properties.name), c"lo");
        assert_eq!((properties.ptr_support, properties.max_recvs), (HOST_MEMORY, 1));
        assert_eq!((net.get_properties)(1, &raw mut properties), INVALID_ARGUMENT);
        let (mut data, mut registration) = (0_u8, null_mut());
        let at = (&raw mut data).cast();
        assert_eq!((net.reg_mr)(null_mut(), at, 1, 2, &raw mut registration), INVALID_ARGUMENT);
        assert_eq!((net.reg_mr)(null_mut(), at, 1, 1, &raw mut registration), SUCCESS);
    }
}

#[test]
fn messages_of_all_sizes_arrive_in_order() {
    let pair = pair();
    let sizes = [0, 1, 16 << 20, 65_536, 0, 65_537, 16 << 20, 3];
    let mut sent: Vec<_> = sizes.iter().enumerate().map(|(m, size)| pattern(m, *size)).collect();
    // One has more room than its message.
    let mut got: Vec<_> = sizes.iter().map(|size| vec![0; *size]).collect();
    got[3].resize(70_000, 0);
    let mut requests = Vec::new();
    for (data, tag) in got.iter_mut().zip(5..) {
        requests.push(pair.receive(data, tag));
    }
    for (data, tag) in sent.iter_mut().zip(5..) {
        requests.push(pair.send(data, tag));
    }
    let expected = sizes.map(|size| c_int::try_from(size).unwrap());
    assert_eq!(finish(&requests), [expected, expected].concat());
    got[3].truncate(65_536);
    for (message, data) in got.iter().enumerate() {
        assert!(*data == pattern(message, sizes[message]), "message {message} differs");
    }
}

#[test]
fn a_message_that_is_too_long_is_an_error() {
    let pair = pair();
    let (mut sent, mut got) = (vec![1; 1001], vec![0; 1000]);
    let request = pair.receive(&mut got, 0);
    assert_eq!(finish(&[pair.send(&mut sent, 0)]), [1001]);
    assert_eq!(failure(request), INVALID_USAGE);
    assert_eq!(got, vec![0; 1000]);
    let end = " sent 1001 bytes, but there is room for 1000";
    assert!(was_logged("2 NET/switchml: 127.0.0.1:", end), "{:?}", LOGGED.lock());
}

#[test]
fn a_peer_that_goes_in_mid_message_is_an_error_on_either_side() {
    let (net, mut sent, mut got) = (table(), vec![1; 16 << 20], vec![0; 16 << 20]);
    for sender_goes in [true, false] {
        let pair = pair();
        let (sending, receiving) = (pair.send(&mut sent, 0), pair.receive(&mut got, 0));
        let (going, staying) =
            if sender_goes { (pair.sender, receiving) } else { (pair.receiver, sending) };
        let mut done = 0;
        // SAFETY: as NCCL calls them. One turn moves less than the message.
        unsafe {
            assert_eq!((net.test)(sending, &raw mut done, null_mut()), SUCCESS);
            assert_eq!((net.test)(receiving, &raw mut done, null_mut()), SUCCESS);
            assert_eq!(done, 0);
            assert_eq!((net.close_send)(going), SUCCESS);
        }
        assert_eq!(failure(staying), REMOTE_ERROR);
    }
    let begin = "2 NET/switchml: lost the connection with 127.0.0.1:";
    assert!(was_logged(begin, ": it closed the connection"), "{:?}", LOGGED.lock());
    assert!(
        was_logged(begin, "(os error 104)") || was_logged(begin, "(os error 32)"),
        "reset or a broken pipe: {:?}",
        LOGGED.lock()
    );
}

/// Has many messages in flight, like NCCL, which has several steps of many buffers in each
/// direction, and sometimes tests the newest first.
#[test]
fn many_messages_are_under_way_at_once() {
    const MESSAGES: usize = 500;
    const AT_ONCE: usize = 64;
    let pair = pair();
    let size = |message: usize| message * 37 % 5000;
    let mut sent: Vec<_> = (0..MESSAGES).map(|m| pattern(m, size(m))).collect();
    let mut got: Vec<_> = (0..MESSAGES).map(|m| vec![0; size(m)]).collect();
    for (sent, got) in sent.chunks_mut(AT_ONCE).zip(got.chunks_mut(AT_ONCE)) {
        let sizes: Vec<_> = sent.iter().map(|data| c_int::try_from(data.len()).unwrap()).collect();
        let mut requests: Vec<_> = sent.iter_mut().map(|data| pair.send(data, 1)).collect();
        requests.extend(got.iter_mut().map(|data| pair.receive(data, 1)));
        requests.reverse();
        let mut finished = finish(&requests);
        finished.reverse();
        assert_eq!(finished, [sizes.clone(), sizes].concat());
    }
    for (message, data) in got.iter().enumerate() {
        assert!(*data == pattern(message, size(message)), "message {message} differs");
    }
}

/// NCCL's threads: one sends while another one, usually in another process, receives.
#[test]
fn two_threads_exchange_messages() {
    let pair = pair();
    let (sender, receiver) = (pair.sender.expose_provenance(), pair.receiver.expose_provenance());
    let only = |sender: usize, receiver: usize| Pair {
        sender: std::ptr::with_exposed_provenance_mut(sender),
        receiver: std::ptr::with_exposed_provenance_mut(receiver),
    };
    let sends = std::thread::spawn(move || {
        for message in 0..200 {
            let mut data = pattern(message, 100_000);
            assert_eq!(finish(&[only(sender, 0).send(&mut data, 0)]), [100_000]);
        }
    });
    for message in 0..200 {
        let mut data = vec![0; 100_000];
        assert_eq!(finish(&[only(0, receiver).receive(&mut data, 0)]), [100_000]);
        assert!(data == pattern(message, 100_000), "message {message} differs");
    }
    sends.join().unwrap();
}

#[test]
fn a_tag_that_is_not_the_next_is_an_error() {
    let pair = pair();
    let (mut sent, mut got) = (vec![1; 10], vec![0; 10]);
    let request = pair.receive(&mut got, 8);
    assert_eq!(finish(&[pair.send(&mut sent, 7)]), [10]);
    assert_eq!(failure(request), INTERNAL_ERROR);
    assert!(was_logged("2 NET/switchml: ", " with tag 7, but 8 is next here"));
}

#[test]
fn nobody_at_the_port_is_an_error() {
    let net = table();
    let mut handle = [0_u8; HANDLE_BYTES];
    let (mut listener, mut sender) = (null_mut(), null_mut::<c_void>());
    let (at, deadline) = (handle.as_mut_ptr().cast(), Instant::now() + LIMIT);
    // SAFETY: as NCCL calls them.
    unsafe {
        assert_eq!((net.listen)(0, at, &raw mut listener), SUCCESS);
        assert_eq!((net.close_listen)(listener), SUCCESS);
        let mut code = SUCCESS;
        while code == SUCCESS {
            assert!(Instant::now() < deadline && sender.is_null(), "connected");
            code = (net.connect)(0, at, &raw mut sender, null_mut());
        }
        assert_eq!(code, REMOTE_ERROR);
    }
    let refused = "Connection refused (os error 111)";
    assert!(was_logged("2 NET/switchml: cannot connect to 127.0.0.1:", refused));
}

#[test]
fn strangers_are_turned_away_and_the_rank_gets_in() {
    let net = table();
    let mut handle = [0_u8; HANDLE_BYTES];
    let (mut listener, mut link) = (null_mut(), null_mut::<c_void>());
    // SAFETY: called like NCCL does.
    unsafe {
        let at = handle.as_mut_ptr().cast();
        assert_eq!((net.listen)(0, at, &raw mut listener), SUCCESS);
        let port = u16::from_be_bytes([handle[17], handle[18]]);
        // More connections than the port serves at once, and none sends anything.
        let silent: Vec<_> =
            (0..100).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        let mut wrong = handle;
        wrong[20] ^= 1;
        let (at, deadline) = (wrong.as_mut_ptr().cast(), Instant::now() + LIMIT);
        let mut stranger = null_mut::<c_void>();
        while stranger.is_null() {
            assert!(Instant::now() < deadline, "not connected");
            assert_eq!((net.connect)(0, at, &raw mut stranger, null_mut()), SUCCESS);
        }
        let (mut sender, at) = (null_mut::<c_void>(), handle.as_mut_ptr().cast());
        while link.is_null() {
            assert!(Instant::now() < deadline, "not accepted");
            if sender.is_null() {
                assert_eq!((net.connect)(0, at, &raw mut sender, null_mut()), SUCCESS);
            }
            assert_eq!((net.accept)(listener, &raw mut link, null_mut()), SUCCESS);
        }
        let pair = Pair { sender, receiver: link };
        let (mut sent, mut got) = (vec![9; 10], vec![0; 10]);
        let requests = [pair.receive(&mut got, 3), pair.send(&mut sent, 3)];
        assert_eq!(finish(&requests), [10, 10]);
        assert_eq!(got, [9; 10]);
        drop(silent);
    }
}
