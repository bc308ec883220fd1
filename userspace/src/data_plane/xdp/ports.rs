//! The interfaces that the program is attached to, and what becomes of them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::programs::links::FdLink;
use tracing::{info, warn};

use super::attach::{self, StartError};
use super::hook::{self, Choice, Hook, Mode};
use super::interfaces::{self, Interface};
use super::pins::Pins;
use super::tags;
use crate::data_plane::LostPort;

/// Longest wait for the kernel to detach.
const PATIENCE: Duration = Duration::from_secs(2);

/// The programs, and all ports.
pub struct Ports {
    object: Ebpf,
    /// Those that are loaded, with their ids.
    programs: Programs,
    mode: Mode,
    ports: Vec<Port>,
    /// Lost while the aggregator was away, and not told yet.
    lost: Vec<LostPort>,
}

/// Ids of the programs that are loaded.
#[derive(Default)]
struct Programs {
    xdp: Option<u32>,
    tc: Option<u32>,
}

impl Programs {
    fn slot(&mut self, hook: Hook) -> &mut Option<u32> {
        match hook {
            Hook::Native | Hook::Generic => &mut self.xdp,
            Hook::Bundle => &mut self.tc,
        }
    }

    fn ids(&self) -> Vec<u32> {
        [self.xdp, self.tc].into_iter().flatten().collect()
    }
}

struct Port {
    name: String,
    index: u32,
    hook: Hook,
    /// The link, or why there is none.
    attachment: Result<FdLink, String>,
}

impl Ports {
    /// The programs, without ports.
    pub fn new(object: Ebpf, mode: Mode) -> Self {
        Self { object, programs: Programs::default(), mode, ports: Vec::new(), lost: Vec::new() }
    }

    /// Attaches a program to each of these interfaces, and to no others. It takes the place of another in links that are pinned and
    /// intact, so that no packet slips through; the other pinned links count as lost.
    ///
    /// # Errors
    ///
    /// [`StartError`]; some interfaces may be attached.
    pub fn attach_to(&mut self, interfaces: &[Interface], pins: &Pins) -> Result<(), StartError> {
        let linked = pins.linked()?;
        for &index in linked.iter().filter(|index| interfaces.iter().all(|interface| interface.index != **index)) {
            pins.drop_link(index)?;
            tags::hide_again(pins, Some(index));
            let what = format!("the aggregator was restarted without its interface, which was number {index}");
            self.lost.push(LostPort { index, what });
        }
        for (interface, Choice { hook, why }) in interfaces.iter().zip(hook::choose(self.mode, interfaces)?) {
            let name = interface.name.clone();
            info!("interface {name}: {}: {why}", hook.name());
            tags::show(interface, hook, pins)?;
            let link = match self.adopt(interface, hook, pins)? {
                Some(link) => link,
                None => self.attach(interface, hook, pins)?,
            };
            self.ports.push(Port { name, index: interface.index, hook, attachment: Ok(link) });
        }
        Ok(())
    }

    /// Looks whether the program is attached still, and attaches it again where it is not. Returns the ports that were lost
    /// since this was last asked: they may have missed packets, whether or not they are attached again.
    pub fn lost(&mut self, pins: &Pins) -> Vec<LostPort> {
        let interfaces = match interfaces::list() {
            Ok(interfaces) => interfaces,
            Err(error) => {
                warn!("cannot tell whether the program is attached still: {error}");
                return Vec::new();
            }
        };
        let mut lost = std::mem::take(&mut self.lost);
        for number in 0..self.ports.len() {
            let Port { name, index, hook, attachment } = &self.ports[number];
            let same = interfaces.iter().find(|interface| interface.index == *index);
            if attachment.is_ok() {
                let program = *self.programs.slot(*hook);
                let Some(what) = fault(name, same, *hook, program) else { continue };
                warn!("{what}");
                lost.push(LostPort { index: *index, what });
            }
            let named = interfaces.iter().find(|interface| interface.name == *name).cloned();
            self.attach_again(number, named, pins);
        }
        lost
    }

    /// The ports in one line, with what is wrong with them.
    pub fn describe(&self) -> String {
        let describe = |port: &Port| match &port.attachment {
            Ok(_) => port.name.clone(),
            Err(problem) => format!("{} (not attached: {problem})", port.name),
        };
        let of_hook = |hook: Hook| {
            let ports: Vec<_> = self.ports.iter().filter(|port| port.hook == hook).map(describe).collect();
            (!ports.is_empty()).then(|| format!("{} on {}", hook.name(), ports.join(", ")))
        };
        [Hook::Native, Hook::Bundle, Hook::Generic].into_iter().filter_map(of_hook).collect::<Vec<_>>().join("; ")
    }

    /// Detaches from all ports. The pins have been removed.
    pub fn detach(&mut self) {
        self.ports.clear();
        wait_until_detached(&self.programs.ids());
    }

    /// Takes over the link that an earlier daemon left at the interface, if it did and the link is intact.
    fn adopt(&mut self, interface: &Interface, hook: Hook, pins: &Pins) -> Result<Option<FdLink>, StartError> {
        let Some(link) = pins.link(interface.index) else { return Ok(None) };
        let program = self.load(hook)?;
        let taken = attach::take_over(&mut self.object, link, hook);
        // The index may be that of another interface by now, or of one in another network namespace.
        let interfaces = interfaces::list()?;
        let now = interfaces.iter().find(|known| known.index == interface.index);
        let Some(what) = fault(&interface.name, now, hook, Some(program)) else { return Ok(taken.ok()) };
        self.lost.push(LostPort { index: interface.index, what });
        Ok(None)
    }

    /// Attaches to an interface that the hook's program is not attached to.
    fn attach(&mut self, interface: &Interface, hook: Hook, pins: &Pins) -> Result<FdLink, StartError> {
        pins.drop_link(interface.index)?;
        self.load(hook)?;
        let link = attach::attach(&mut self.object, interface, hook)?;
        Ok(pins.keep_link(interface.index, link)?)
    }

    /// Loads the hook's program unless it is loaded, which takes the verifier a while. Returns its id.
    fn load(&mut self, hook: Hook) -> Result<u32, StartError> {
        if let Some(id) = *self.programs.slot(hook) {
            return Ok(id);
        }
        let id = attach::load(&mut self.object, hook)?;
        *self.programs.slot(hook) = Some(id);
        Ok(id)
    }

    /// Attaches to what has the port's name now, and logs how that goes when it is news.
    fn attach_again(&mut self, number: usize, interface: Option<Interface>, pins: &Pins) {
        let port = &mut self.ports[number];
        let hook = port.hook;
        // A link that was lost must be gone first.
        let before = std::mem::replace(&mut port.attachment, Err(String::new())).err();
        let _ = pins.drop_link(port.index);
        let attached = match &interface {
            Some(interface) => self.attach(interface, hook, pins).map_err(|error| error.to_string()),
            None => Err("there is no such interface".to_owned()),
        };
        let port = &mut self.ports[number];
        match &attached {
            Ok(_) => info!("attached to interface {} again", port.name),
            Err(now) if before.as_ref() != Some(now) => warn!("cannot attach to interface {} again: {now}", port.name),
            Err(_) => {}
        }
        if let (Ok(_), Some(interface)) = (&attached, interface) {
            port.index = interface.index;
            if let Err(error) = tags::show(&interface, hook, pins) {
                warn!("{error}");
            }
        }
        port.attachment = attached;
    }
}

/// Waits until these programs are on no interface. The kernel takes its time after the last hold of a link is gone, and whoever
/// attaches next must not find the interface taken.
pub fn wait_until_detached(programs: &[u32]) {
    let begin = Instant::now();
    let is_attached = |interface: &Interface| {
        let at_ingress = interfaces::at_ingress(&interface.name).unwrap_or_default();
        interface.program.iter().chain(&at_ingress).any(|program| programs.contains(program))
    };
    while interfaces::list().is_ok_and(|interfaces| interfaces.iter().any(is_attached)) {
        if begin.elapsed() > PATIENCE {
            warn!("the program is attached still; something else holds it");
            return;
        }
        sleep(Duration::from_millis(5));
    }
}

/// What is wrong with an interface that the hook's program was attached to.
fn fault(name: &str, interface: Option<&Interface>, hook: Hook, program: Option<u32>) -> Option<String> {
    let Some(interface) = interface else { return Some(format!("interface {name} of the aggregator was removed")) };
    let attached = match hook {
        Hook::Native | Hook::Generic => interface.program.into_iter().collect(),
        Hook::Bundle => interfaces::at_ingress(&interface.name).unwrap_or_default(),
    };
    if program.is_some_and(|program| attached.contains(&program)) {
        return None;
    }
    match hook {
        Hook::Bundle => Some(format!("the aggregator's program was detached from tc ingress of interface {name}")),
        _ if attached.is_empty() => Some(format!("the aggregator's XDP program was detached from interface {name}")),
        _ => Some(format!("another XDP program took the aggregator's place on interface {name}")),
    }
}
