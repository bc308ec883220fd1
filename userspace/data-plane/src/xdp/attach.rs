//! Loads and attaches the programs. Each error says in one line why that is impossible.

use std::error::Error as StdError;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use aya::programs::links::{FdLink, LinkType};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::xdp::XdpLink;
use aya::programs::{
    LinkOrder, Program, ProgramError, ProgramFd, ProgramInfo, RawTracePoint, SchedClassifier,
    TcAttachType, Xdp, XdpMode, loaded_programs,
};
use aya::{Ebpf, EbpfError, EbpfLoader};
use tracing::warn;

use super::attachment::Attachment;
use super::halt::Halt;
use super::hook::Hook;
use super::ingress::{self, causes, errno};
use super::journal::Settings;
use super::loopback;
use super::maps;
use super::pins::PinError;
use super::refusals;
use super::verifier;
use switchml_host::interfaces::{self, Interface, XdpFeatures};
use switchml_host::netlink::NetlinkError;
use switchml_host::refusal;
use switchml_userspace_core::drop_rate::DropRate;

/// The programs for XDP and for tc of a root, and of a combiner.
const PROGRAMS: [[&str; 2]; 2] =
    [["switchml", "switchml_bundle"], ["switchml_combiner", "switchml_combiner_bundle"]];
/// The program that runs on frames of the XDP programs as they leave.
const COPY: &str = "switchml_copy";
/// The programs that count frames that XDP could not send, and their tracepoints.
const TRACEPOINTS: [(&str, &str); 2] =
    [("switchml_given", "xdp_devmap_xmit"), ("switchml_not_queued", "xdp_redirect_err")];
/// The oldest kernel that `cargo xtask matrix` tries.
const OLDEST: (u32, u32) = (6, 1);
/// Longest time that the kernel takes to detach a program to which no reference is left.
const DETACHING: Duration = Duration::from_millis(100);
/// Lines of the verifier's log to show: the last ones say why.
const LOG_LINES: usize = 12;

const PRIVILEGE: &str =
    "run it as root, or with the capabilities CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN";

/// Why the XDP data plane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No interface was given.
    #[error("no interface given; use --iface to name those that workers are behind, out of {0}")]
    NoInterface(String),
    /// An interface was given more than once.
    #[error("interface {0:?} is given twice; give each interface once")]
    Twice(String),
    /// The kernel does not let this process use BPF.
    #[error("not allowed to load or attach BPF programs; {PRIVILEGE}")]
    Privilege,
    /// The kernel is older than any that the programs were seen to load on.
    #[error(
        "this is Linux {release}; the BPF programs need {}.{} or newer: use --data-plane software",
        OLDEST.0,
        OLDEST.1
    )]
    TooOld {
        /// The kernel's release.
        release: String,
    },
    /// Programs may interrupt each other on a processor, and share its memory then.
    #[error(
        "this kernel is a real-time one (PREEMPT_RT), where one packet's program may interrupt \
         another's: use --data-plane software, or a kernel without it"
    )]
    RealTime,
    /// The kernel was built without BPF.
    #[error("this kernel has no BPF (CONFIG_BPF_SYSCALL); use --data-plane software")]
    NoBpf,
    /// The kernel has no memory for the programs and their maps, or may use no more.
    #[error(
        "the kernel has too little memory for the BPF programs and their tables ({0}); free some, \
         raise the limit of the daemon's cgroup (MemoryMax= of its unit), or use --data-plane \
         software"
    )]
    NoMemory(String),
    /// The verifier refused the program.
    #[error("the kernel's verifier refused the program ({error}); the end of its log:\n{log}")]
    Verifier {
        /// The system call's error.
        error: io::Error,
        /// The last lines of the log.
        log: String,
    },
    /// Something else about loading.
    #[error("cannot load the BPF program: {0}; see `dmesg`, or use --data-plane software")]
    Load(String),
    /// Something runs on the interface already.
    #[error(
        "interface {0:?} already has an XDP program, which `ip link show {0}` names; stop what \
         attached it (`switchml-aggregator detach --pin-dir FOLDER` removes what a killed \
         aggregator left)"
    )]
    Occupied(String),
    /// Another aggregator serves the interface, at either hook.
    #[error(
        "interface {name:?} is another aggregator's, whose program {program} (id {id}) is attached \
         there; stop that one, or give this one other interfaces (`bpftool link` tells where its \
         links are pinned; `switchml-aggregator detach --pin-dir FOLDER` removes what a killed \
         aggregator left)"
    )]
    Served {
        /// The interface.
        name: String,
        /// The other aggregator's program.
        program: &'static str,
        /// The program's id.
        id: u32,
    },
    /// An earlier aggregator left a data plane that this one cannot take over.
    #[error(
        "a killed aggregator left its data plane in {folder:?}, with {difference}; start it with \
         the same options again, or remove the data plane and its jobs: `switchml-aggregator \
         detach --pin-dir {}`", folder.display()
    )]
    Other {
        /// The folder of that data plane.
        folder: PathBuf,
        /// How that data plane differs from the one that is needed.
        difference: String,
    },
    /// The pins cannot be made.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The driver has no native XDP.
    #[error("the driver of interface {0:?} has no native XDP; use --mode bundle")]
    NoNative(String),
    /// Loopback has no native XDP, and XDP cannot send frames to it.
    #[error(
        "native XDP cannot serve ranks on this host through \"lo\"; use --mode bundle, or give \
         such a rank a network namespace behind a veth, and that veth with --iface in place of lo"
    )]
    NativeLoopback,
    /// XDP at a bond runs at its ports, and sees theirs instead of the bond's.
    #[error(
        "XDP cannot serve bond {0:?}: it would see the frames at the bond's ports; use --mode \
         bundle"
    )]
    Bond(String),
    /// The driver has native XDP, and refuses it.
    #[error("the driver of interface {name:?} refuses native XDP (MTU {mtu}): {said}; {remedy}")]
    Refused {
        /// The interface.
        name: String,
        /// The interface's MTU in bytes.
        mtu: u32,
        /// Why, in the driver's words.
        said: String,
        /// What helps.
        remedy: String,
    },
    /// Something else about attaching.
    #[error("cannot attach to interface {name:?} (MTU {mtu}): {why}")]
    Attach {
        /// The interface.
        name: String,
        /// The interface's MTU in bytes.
        mtu: u32,
        /// The kernel's error.
        why: String,
    },
    /// A veth whose other end drops frames from XDP.
    #[error(
        "interface {0:?} would silently drop every answer: its other end takes no frames from XDP; \
         attach an XDP program there that passes them, or, while it is up, turn GRO off and on \
         again there (`ethtool -K <other end> gro off`, `gro on`)"
    )]
    DoesNotDeliver(String),
    /// The start was told to stop.
    #[error("a signal stopped the daemon before its data plane was ready")]
    Halted,
    /// Netlink failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

impl StartError {
    /// Whether the error is one of the command line, not of the system.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::NoInterface(_) | Self::Twice(_))
    }
}

impl StartError {
    /// The refusal of a hook, if the error is one and another hook may work.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Verifier { error, .. } => Some(Refusal {
                everywhere: true,
                why: format!("the kernel's verifier refused the program ({error})"),
            }),
            Self::Load(_) => Some(Refusal { everywhere: true, why: self.to_string() }),
            Self::NoNative(_)
            | Self::NativeLoopback
            | Self::Bond(_)
            | Self::Refused { .. }
            | Self::Attach { .. }
            | Self::DoesNotDeliver(_) => Some(Refusal { everywhere: false, why: self.to_string() }),
            _ => None,
        }
    }
}

/// Why a hook cannot be used.
pub struct Refusal {
    /// Whether the hook cannot be used at any interface.
    pub everywhere: bool,
    /// The reason, in one line.
    pub why: String,
}

/// Finds the interfaces with these names, and the names without an interface yet.
pub fn find(
    names: &[String],
    all: &[Interface],
) -> Result<(Vec<Interface>, Vec<String>), StartError> {
    let existing =
        || all.iter().map(|interface| interface.name.as_str()).collect::<Vec<_>>().join(", ");
    if names.is_empty() {
        return Err(StartError::NoInterface(existing()));
    }
    let (mut found, mut missing) = (Vec::<Interface>::new(), Vec::new());
    for name in names {
        let named = all.iter().find(|interface| interface.is_called(name));
        if missing.contains(name) || named.is_some_and(|interface| found.contains(interface)) {
            return Err(StartError::Twice(name.clone()));
        }
        match named {
            Some(interface) => found.push(interface.clone()),
            None => {
                warn!(
                    "waiting for interface {name:?}, which is not in this network namespace yet; \
                     it has {}",
                    existing()
                );
                missing.push(name.clone());
            }
        }
    }
    Ok((found, missing))
}

/// The loaded object file, of which a data plane uses the programs of one role.
pub struct Object {
    /// The programs and maps.
    pub ebpf: Ebpf,
    is_combiner: bool,
    halt: Arc<Halt>,
}

impl Object {
    fn name(&self, hook: Hook) -> &'static str {
        let [xdp, tc] = PROGRAMS[usize::from(self.is_combiner)];
        match hook {
            Hook::Native => xdp,
            Hook::Bundle => tc,
        }
    }

    fn xdp(&mut self) -> Result<&mut Xdp, StartError> {
        let name = self.name(Hook::Native);
        program(&mut self.ebpf, name)
    }

    fn tc(&mut self) -> Result<&mut SchedClassifier, StartError> {
        let name = self.name(Hook::Bundle);
        program(&mut self.ebpf, name)
    }
}

/// What differs between programs over the same maps.
#[derive(Clone, Copy)]
pub struct Choice {
    /// Whether they log each packet.
    pub trace: bool,
    /// Packets that they lose.
    pub drop_rate: DropRate,
}

/// Opens the programs over the maps that are pinned in `folder`; makes those that are missing.
pub fn open(
    folder: &Path,
    &Settings { cells, roce, .. }: &Settings,
    choice: Choice,
    halt: Arc<Halt>,
) -> Result<Object, StartError> {
    let Choice { trace, drop_rate } = choice;
    let lose_below = drop_rate.threshold();
    let mut loader = EbpfLoader::new();
    let roce = u32::from(roce);
    loader.override_global("ROCE", &roce, true);
    // An array has at least one.
    loader.map_max_entries("CELLS", cells.unwrap_or(1));
    loader.override_global("LOSE_BELOW", &lose_below, true);
    for name in maps::NAMES {
        loader.map_pin_path(name, folder.join(name));
    }
    let object = if trace { crate::xdp_trace_object() } else { crate::xdp_object() };
    let ebpf = loader.load(object).map_err(load_error)?;
    Ok(Object { ebpf, is_combiner: cells.is_some(), halt })
}

/// Loads the hook's program, and returns its id.
pub fn load(object: &mut Object, hook: Hook) -> Result<u32, StartError> {
    let halt = Arc::clone(&object.halt);
    halt.unless_wanted(|| verify(object, hook)).unwrap_or(Err(StartError::Halted))
}

fn verify(object: &mut Object, hook: Hook) -> Result<u32, StartError> {
    let loaded = match hook {
        Hook::Native => {
            let program = object.xdp()?;
            verifier::check(|| program.load()).and_then(|()| program.info())
        }
        Hook::Bundle => {
            let program = object.tc()?;
            verifier::check(|| program.load()).and_then(|()| program.info())
        }
    };
    Ok(loaded.map_err(|error| load_error(error.into()))?.id())
}

/// Loads the program that runs on frames of the XDP programs as they leave.
pub fn load_copy(object: &mut Object) -> Result<ProgramFd, StartError> {
    let program: &mut Xdp = program(&mut object.ebpf, COPY)?;
    let loaded = object.halt.unless_wanted(|| {
        let loaded = verifier::check(|| program.load());
        let loaded = loaded.and_then(|()| program.fd()?.try_clone().map_err(Into::into));
        loaded.map_err(|error| load_error(error.into()))
    });
    loaded.unwrap_or(Err(StartError::Halted))
}

/// Has frames counted that the kernel cannot send after XDP has sent them on. Where that cannot be,
/// the data plane goes on without.
pub fn count_unsent(object: &mut Object) {
    for (name, tracepoint) in TRACEPOINTS {
        let counts = program(&mut object.ebpf, name).and_then(|program: &mut RawTracePoint| {
            program
                .load()
                .and_then(|()| program.attach(tracepoint))
                .map_err(|error| load_error(error.into()))
        });
        if let Err(error) = counts {
            warn!("frames that XDP cannot send are not all counted ({tracepoint}): {error}");
        }
    }
}

/// Whether this kernel is new enough: the programs were seen to load on it.
pub fn check_kernel(release: &str) -> Result<(), StartError> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST => {
            Err(StartError::TooOld { release: release.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Refuses a real-time kernel: `/sys/kernel/realtime` says 1 there, and is missing elsewhere.
pub fn check_preemption(realtime: Option<&str>) -> Result<(), StartError> {
    match realtime.map(str::trim) {
        Some("1") => Err(StartError::RealTime),
        _ => Ok(()),
    }
}

/// The hook that a link is at.
pub fn hook_of(link: &FdLink) -> Option<Hook> {
    match link.info().ok()?.link_type().ok()? {
        LinkType::Xdp => Some(Hook::Native),
        LinkType::Tcx => Some(Hook::Bundle),
        _ => None,
    }
}

/// Has the hook's loaded program serve an existing link in place of another program, between one
/// packet and the next.
pub fn take_over(object: &mut Object, link: FdLink, hook: Hook) -> Result<FdLink, StartError> {
    let failed =
        |error: &dyn StdError| StartError::Load(format!("cannot replace a program: {error}"));
    match hook {
        Hook::Native => {
            let program = object.xdp()?;
            let link = XdpLink::try_from(link).map_err(|error| failed(&error))?;
            let taken = program
                .attach_to_link(link)
                .and_then(|id| program.take_link(id))
                .map_err(|error| failed(&error))?;
            FdLink::try_from(taken).map_err(|error| failed(&error))
        }
        Hook::Bundle => {
            let program = object.tc()?;
            let link = SchedClassifierLink::try_from(link).map_err(|error| failed(&error))?;
            let taken = program
                .attach_to_link(link)
                .and_then(|id| program.take_link(id))
                .map_err(|error| failed(&error))?;
            FdLink::try_from(taken).map_err(|error| failed(&error))
        }
    }
}

/// Like [`take_over`], for this owner's filter at tc ingress.
pub fn take_over_filter(
    object: &mut Object,
    interface: &Interface,
    owner: u32,
) -> Result<Attachment, StartError> {
    ingress::replace_filter(object.tc()?, interface, owner)
        .map_err(|error| attach_error(&error, interface, Hook::Bundle))?;
    Ok(Attachment::Filter(owner))
}

/// Attaches the hook's loaded program by a link, which ends when it is dropped and not pinned;
/// `None` if the kernel has no links at tc ingress.
pub fn attach(
    object: &mut Object,
    interface: &Interface,
    hook: Hook,
) -> Result<Option<FdLink>, StartError> {
    refuse_to_share(interface)?;
    match hook {
        Hook::Native if interface.kind.as_deref() == Some("bond") => {
            Err(StartError::Bond(interface.name.clone()))
        }
        Hook::Native => {
            let link = attach_xdp(object, interface)?;
            if interfaces::xdp_features(interface.index)?.is_none_or(XdpFeatures::delivers) {
                Ok(Some(link))
            } else {
                Err(StartError::DoesNotDeliver(interface.name.clone()))
            }
        }
        Hook::Bundle if ingress::has_links() => attach_tc(object, interface).map(Some),
        Hook::Bundle => Ok(None),
    }
}

/// Attaches the loaded program at tc ingress by a filter of this owner, which stays until it is
/// removed.
pub fn attach_filter(
    object: &mut Object,
    interface: &Interface,
    owner: u32,
) -> Result<Attachment, StartError> {
    ingress::add_filter(object.tc()?, interface, owner)
        .map_err(|error| attach_error(&error, interface, Hook::Bundle))?;
    Ok(Attachment::Filter(owner))
}

/// Lets no other aggregator's frames be taken: tc has room for several programs, and XDP comes
/// before all of them.
fn refuse_to_share(interface: &Interface) -> Result<(), StartError> {
    let begin = Instant::now();
    while let Some((program, id)) = aggregator_at(interface)? {
        // The program may be our own, released a moment ago.
        if begin.elapsed() > DETACHING {
            return Err(StartError::Served { name: interface.name.clone(), program, id });
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Name and id of an aggregator's program that is attached to the interface.
fn aggregator_at(interface: &Interface) -> Result<Option<(&'static str, u32)>, StartError> {
    let interfaces = interfaces::list()?;
    let in_xdp = interfaces
        .iter()
        .find(|known| known.index == interface.index)
        .and_then(|known| known.program);
    let at_ingress = ingress::programs(interface);
    if at_ingress.is_none() {
        warn!(
            "other programs are at tc ingress of interface {}; whether one is another \
             aggregator's is not known without CAP_SYS_ADMIN",
            interface.name
        );
    }
    let mut attached = at_ingress.unwrap_or_default();
    attached.extend(in_xdp);
    if attached.is_empty() {
        return Ok(None);
    }
    let ours = |program: ProgramInfo| {
        let mut names = PROGRAMS.into_iter().flatten();
        // The kernel keeps the first 15 bytes of a name.
        let name = names.find(|name| program.name_as_str() == name.get(..15).or(Some(name)))?;
        attached.contains(&program.id()).then_some((name, program.id()))
    };
    Ok(loaded_programs().flatten().find_map(ours))
}

fn attach_xdp(object: &mut Object, interface: &Interface) -> Result<FdLink, StartError> {
    let program = object.xdp()?;
    let attached = program
        .attach_to_if_index(interface.index, XdpMode::Driver)
        .and_then(|id| program.take_link(id));
    match attached {
        Ok(link) => FdLink::try_from(link).map_err(|error| StartError::Load(error.to_string())),
        Err(error) => Err(xdp_error(&error, interface, program)),
    }
}

/// The error, with what the driver says when it is asked once more.
fn xdp_error(error: &ProgramError, interface: &Interface, program: &Xdp) -> StartError {
    let known = attach_error(error, interface, Hook::Native);
    let StartError::Attach { name, mtu, why } = known else { return known };
    let said = program.fd().ok().and_then(|program| {
        let asked = refusal::of_xdp(interface.index, program.as_fd());
        asked.inspect_err(|error| warn!("{error}")).ok().flatten()
    });
    let features = interfaces::xdp_features(interface.index).ok().flatten();
    let has_native = features.is_none_or(XdpFeatures::has_native);
    match said {
        Some(said) if refusals::is_for_lack_of_xdp(&said) => StartError::NoNative(name),
        None if !has_native && errno(error) == Some(libc::EOPNOTSUPP) => StartError::NoNative(name),
        said => {
            let remedy = refusals::remedy(said.as_deref(), &name, mtu);
            let said = said.map_or(why, |said| format!("{said:?}"));
            StartError::Refused { name, mtu, said, remedy }
        }
    }
}

fn attach_tc(object: &mut Object, interface: &Interface) -> Result<FdLink, StartError> {
    let program = object.tc()?;
    // Run before other programs, as XDP would: those are meant for other packets than the
    // aggregator's.
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let attached = program
        .attach_with_options(&interface.name, TcAttachType::Ingress, options)
        .and_then(|id| program.take_link(id))
        .map_err(|error| attach_error(&error, interface, Hook::Bundle))?;
    FdLink::try_from(attached).map_err(|error| StartError::Load(error.to_string()))
}

fn program<'a, P>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut P, StartError>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program =
        object.program_mut(name).ok_or_else(|| StartError::Load(format!("no program {name}")))?;
    program.try_into().map_err(|error: ProgramError| StartError::Load(error.to_string()))
}

fn load_error(error: EbpfError) -> StartError {
    match errno(&error) {
        Some(libc::EPERM | libc::EACCES) if !is_verifier_error(&error) => {
            return StartError::Privilege;
        }
        Some(libc::ENOSYS) => return StartError::NoBpf,
        Some(libc::ENOMEM) => return StartError::NoMemory(chain(&error)),
        _ => {}
    }
    match error {
        EbpfError::ProgramError(ProgramError::LoadError { io_error, verifier_log }) => {
            let log = verifier_log.to_string();
            let lines: Vec<_> = log.lines().collect();
            let log = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
            StartError::Verifier { error: io_error, log }
        }
        error => StartError::Load(chain(&error)),
    }
}

/// The verifier says EACCES too; but then it says more.
fn is_verifier_error(error: &EbpfError) -> bool {
    matches!(error, EbpfError::ProgramError(ProgramError::LoadError { verifier_log, .. })
        if !verifier_log.to_string().trim().is_empty())
}

fn attach_error(error: &ProgramError, interface: &Interface, hook: Hook) -> StartError {
    let (name, mtu) = (interface.name.clone(), interface.mtu);
    match errno(error) {
        Some(libc::EPERM | libc::EACCES) => StartError::Privilege,
        _ if hook == Hook::Bundle => StartError::Attach { name, mtu, why: chain(error) },
        Some(libc::EBUSY | libc::EEXIST) => StartError::Occupied(name),
        Some(libc::EOPNOTSUPP) if interface.index == loopback::INDEX => StartError::NativeLoopback,
        _ => StartError::Attach { name, mtu, why: chain(error) },
    }
}

/// An error and its causes, in one line. Some errors say their cause themselves.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut line = String::new();
    for text in causes(error).map(ToString::to_string) {
        if !line.ends_with(&text) {
            let colon = if line.is_empty() { "" } else { ": " };
            line = format!("{line}{colon}{text}");
        }
    }
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use aya::EbpfError;
    use aya::maps::MapError;

    use super::{check_kernel, check_preemption, load_error};

    #[test]
    fn too_little_memory_is_told_once_and_with_a_remedy() {
        let io_error = io::Error::from_raw_os_error(libc::ENOMEM);
        let map = MapError::CreateError { name: "MEMBERS".to_owned(), io_error };
        let told = load_error(EbpfError::MapError(map)).to_string();
        assert_eq!(told.matches("failed to create map `MEMBERS`").count(), 1, "{told}");
        assert!(told.contains("Cannot allocate memory") && told.contains("MemoryMax="), "{told}");
    }

    #[test]
    fn a_real_time_kernel_is_refused() {
        assert!(check_preemption(None).is_ok() && check_preemption(Some("0\n")).is_ok());
        let error = check_preemption(Some("1\n")).expect_err("it is one").to_string();
        assert!(error.contains("PREEMPT_RT") && error.contains("--data-plane software"), "{error}");
    }

    #[test]
    fn kernels_that_are_too_old_are_refused_in_one_line() {
        for release in
            ["6.1.0-50-cloud-amd64", "6.12.107+deb13-amd64", "7.3.4", "10.0", "unheard of"]
        {
            assert!(check_kernel(release).is_ok(), "{release}");
        }
        for release in ["5.10.0-30-amd64", "6.0.19", "4.19"] {
            let error = check_kernel(release).expect_err("it is too old").to_string();
            let expected = "the BPF programs need 6.1 or newer: use --data-plane software";
            assert_eq!(error, format!("this is Linux {release}; {expected}"));
        }
    }
}
