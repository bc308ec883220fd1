//! The interfaces that the programs are attached to, and changes to them.
//!
//! Twice a second the daemon reads its addresses and MACs, and checks that its program is still
//! attached ([`Attachment::serves`]). If the program is not attached, the daemon aborts the jobs
//! behind that port, and attaches the program again.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

use aya::programs::ProgramFd;
use switchml_userspace_core::data_plane::{ForeignProgram, LostPort, PortStatus};
use tracing::{info, warn};

use super::attach::{self, Object, StartError};
use super::attachment::Attachment;
use super::hook::{Choice, Hook, Mode, Plan};
use super::ingress;
use super::loopback;
use super::maps::XdpPorts;
use super::pins::Pins;
use super::tags;
use switchml_host::interfaces::{self, Interface};

/// Longest wait for the kernel to detach.
const PATIENCE: Duration = Duration::from_secs(2);

/// The programs, and all ports.
pub struct Ports {
    object: Object,
    /// The loaded programs.
    programs: Programs,
    /// The program that runs on frames of the XDP programs as they leave, once it is loaded.
    copy: Option<ProgramFd>,
    xdp_ports: XdpPorts,
    mode: Mode,
    ports: Vec<Port>,
    /// Interfaces that have not existed since the start.
    awaited: Vec<Awaited>,
    /// Ports that were lost while the aggregator was away, and not reported yet.
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
            Hook::Native => &mut self.xdp,
            Hook::Bundle => &mut self.tc,
        }
    }

    fn id(&self, hook: Hook) -> Option<u32> {
        match hook {
            Hook::Native => self.xdp,
            Hook::Bundle => self.tc,
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
    /// Why a better hook is not used, if so.
    fallback: Option<String>,
    /// The interface's MTU, when it was last checked.
    mtu: u32,
    /// The attachment of the program to the port, or why there is none.
    attachment: Result<Attachment, String>,
}

impl Port {
    /// The port and what is wrong with it.
    fn in_words(&self) -> String {
        match (&self.attachment, &self.fallback) {
            (Ok(_), None) => self.name.clone(),
            (Ok(_), Some(why)) => format!("{} (because {why})", self.name),
            (Err(problem), _) => format!("{} (not attached: {problem})", self.name),
        }
    }

    /// Warns if answers may have become too long for the interface: the kernel drops those
    /// silently.
    fn watch_mtu(&mut self, mtu: u32) {
        if mtu < self.mtu {
            warn!(
                "interface {}: its MTU is {mtu} now, and was {}; jobs that have started with \
                 longer packets get no answers through it: raise it, or restart them",
                self.name, self.mtu
            );
        }
        self.mtu = mtu;
    }
}

/// An interface that did not exist when it was last looked for, or could not be served.
struct Awaited {
    name: String,
    problem: Option<StartError>,
}

impl Awaited {
    /// Whether another attempt would fail in the same way, after loading the program for nothing.
    fn is_hopeless(&self) -> bool {
        let refusal = self.problem.as_ref().and_then(StartError::refusal);
        refusal.is_some_and(|refusal| refusal.everywhere)
    }

    fn in_words(&self) -> String {
        let problem = self.problem.as_ref().map(ToString::to_string);
        problem.unwrap_or_else(|| "there is no such interface yet".to_owned())
    }
}

impl Ports {
    /// The programs, without ports.
    pub fn new(object: Object, xdp_ports: XdpPorts, mode: Mode) -> Self {
        Self {
            object,
            programs: Programs::default(),
            copy: None,
            xdp_ports,
            mode,
            ports: Vec::new(),
            awaited: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// The program that runs on frames of the XDP programs as they leave; `None` if nothing uses
    /// XDP.
    pub fn copy(&self) -> Option<ProgramFd> {
        self.copy.as_ref()?.try_clone().ok()
    }

    /// Attaches a program to each of these interfaces, and to no others. In links that are pinned
    /// and intact it replaces the old program, so that no packet is missed; other pinned links, and
    /// other interfaces that an earlier daemon has served, count as lost. Interfaces that are
    /// `missing` are served once they exist.
    ///
    /// # Errors
    ///
    /// [`StartError`]; some interfaces may be attached.
    pub fn attach_to(
        &mut self,
        interfaces: &[Interface],
        missing: Vec<String>,
        earlier: &BTreeMap<u32, String>,
        pins: &Pins,
    ) -> Result<(), StartError> {
        self.drop_others(interfaces, earlier, pins)?;
        self.awaited.extend(missing.into_iter().map(|name| Awaited { name, problem: None }));
        self.attach_as_planned(interfaces, pins)
    }

    /// Attaches to these interfaces. Where the best hook cannot be used, the other one is, if it
    /// may be.
    fn attach_as_planned(
        &mut self,
        interfaces: &[Interface],
        pins: &Pins,
    ) -> Result<(), StartError> {
        let owner = pins.number()?;
        let attached = |interface: &Interface| match pins.link(interface.index) {
            Some(link) => attach::hook_of(&link),
            None => ingress::filtered(interface.index, owner).map(|_| Hook::Bundle),
        };
        let mut plan = Plan::new(self.mode, interfaces, attached)?;
        loop {
            let Err((number, hook, error)) = self.follow(&plan.choices(), interfaces, pins) else {
                return Ok(());
            };
            let Some(refusal) = error.refusal() else { return Err(error) };
            if !plan.refuse(hook, (!refusal.everywhere).then_some(number), &refusal.why) {
                return Err(error);
            }
        }
    }

    /// Detaches from interfaces that are not among these. An earlier daemon may have served some
    /// that do not exist any more, to which nothing is attached.
    fn drop_others(
        &mut self,
        interfaces: &[Interface],
        earlier: &BTreeMap<u32, String>,
        pins: &Pins,
    ) -> Result<(), StartError> {
        let is_other = |index: u32| interfaces.iter().all(|interface| interface.index != index);
        let filtered = ingress::filtered_interfaces(pins.number()?)?;
        for interface in filtered.iter().filter(|interface| is_other(interface.index)) {
            ingress::remove_filter(interface, pins.number()?)?;
        }
        let filtered = filtered.into_iter().map(|interface| interface.index);
        let served = pins.linked()?.into_iter().chain(filtered).chain(earlier.keys().copied());
        for index in served.filter(|index| is_other(*index)).collect::<BTreeSet<_>>() {
            pins.drop_link(index)?;
            tags::hide_again(pins, Some(index));
            let what = what_became_of(index, earlier.get(&index), interfaces);
            self.lost.push(LostPort { index, what });
        }
        Ok(())
    }

    /// Attaches to the interfaces at the hooks of a plan, except where an earlier plan has done so.
    /// An error comes with the interface's index in `interfaces`, and its hook.
    fn follow(
        &mut self,
        choices: &[Choice],
        interfaces: &[Interface],
        pins: &Pins,
    ) -> Result<(), (usize, Hook, StartError)> {
        for (number, (interface, Choice { hook, why, is_fallback })) in
            interfaces.iter().zip(choices).enumerate()
        {
            let hook = *hook;
            if self.ports.iter().any(|port| port.index == interface.index && port.hook == hook) {
                continue;
            }
            self.ports.retain(|port| port.index != interface.index);
            let attachment =
                Ok(self.serve(interface, hook, pins).map_err(|error| (number, hook, error))?);
            let name = interface.name.clone();
            match is_fallback {
                true => warn!("interface {name}: {}, because {why}", hook.name()),
                false => info!("interface {name}: {}: {why}", hook.name()),
            }
            let (index, mtu) = (interface.index, interface.mtu);
            let fallback = is_fallback.then(|| why.clone());
            self.ports.push(Port { name, index, hook, fallback, mtu, attachment });
        }
        Ok(())
    }

    /// Has the hook's program serve the interface, through an earlier daemon's attachment if
    /// possible.
    fn serve(
        &mut self,
        interface: &Interface,
        hook: Hook,
        pins: &Pins,
    ) -> Result<Attachment, StartError> {
        match hook {
            Hook::Native => tags::show(interface, pins)?,
            // Native XDP may have been tried.
            Hook::Bundle => tags::hide_again(pins, Some(interface.index)),
        }
        if interface.index == loopback::INDEX {
            loopback::open(pins)?;
        }
        match self.adopt(interface, hook, pins)? {
            Some(attachment) => Ok(attachment),
            None => self.attach(interface, hook, pins),
        }
    }

    /// Checks whether the program is still attached, and attaches it again where it is not. Returns
    /// the ports that were lost since the last call: they may have missed packets, whether or not
    /// they are attached again.
    pub fn lost(&mut self, pins: &Pins) -> Vec<LostPort> {
        let interfaces = match interfaces::list() {
            Ok(interfaces) => interfaces,
            Err(error) => {
                warn!("cannot tell whether the program is still attached: {error}");
                return Vec::new();
            }
        };
        let mut lost = std::mem::take(&mut self.lost);
        for number in 0..self.ports.len() {
            let index = self.ports[number].index;
            let same = interfaces.iter().find(|interface| interface.index == index);
            if let Some(interface) = same {
                self.ports[number].watch_mtu(interface.mtu);
            }
            let Port { name, index, hook, attachment, .. } = &self.ports[number];
            if let Ok(attachment) = attachment {
                let program = self.programs.id(*hook);
                if same.is_some()
                    && program.is_some_and(|program| attachment.serves(*index, program))
                {
                    continue;
                }
                let what = fault(name, same, *hook);
                warn!("{what}");
                lost.push(LostPort { index: *index, what });
            }
            let named = interfaces.iter().find(|interface| interface.name == *name).cloned();
            self.attach_again(number, named, pins);
        }
        self.attach_to_awaited(&interfaces, pins);
        lost
    }

    /// Attaches to awaited interfaces that exist now. Logs that, or a new reason why it is
    /// impossible.
    fn attach_to_awaited(&mut self, interfaces: &[Interface], pins: &Pins) {
        for mut awaited in std::mem::take(&mut self.awaited) {
            let come = interfaces.iter().find(|interface| interface.is_called(&awaited.name));
            let before = awaited.in_words();
            awaited.problem = match come {
                None => None,
                Some(_) if awaited.is_hopeless() => awaited.problem,
                Some(come) => match self.attach_as_planned(std::slice::from_ref(come), pins) {
                    Ok(()) => continue,
                    Err(error) => Some(error),
                },
            };
            let now = awaited.in_words();
            if now != before {
                warn!("waiting for interface {}: {now}", awaited.name);
            }
            self.awaited.push(awaited);
        }
    }

    /// The present state of each port.
    pub fn status(&self) -> Vec<PortStatus> {
        let interfaces = interfaces::list().unwrap_or_default();
        let status = |port: &Port| {
            let interface = interfaces.iter().find(|interface| interface.index == port.index);
            let program = interface.and_then(|interface| interface.program);
            let foreign = program.filter(|id| !self.programs.ids().contains(id));
            let features = interfaces::xdp_features(port.index).ok().flatten();
            let traffic = interface.map(|interface| interface.traffic).unwrap_or_default();
            PortStatus {
                name: port.name.clone(),
                hook: port.hook.name(),
                problem: port.attachment.as_ref().err().cloned(),
                mtu: interface.map_or(0, |interface| interface.mtu),
                foreign: foreign.map(|id| ForeignProgram {
                    id,
                    is_generic: interface.is_some_and(|interface| interface.program_is_generic),
                }),
                before: interface
                    .filter(|_| port.hook == Hook::Bundle)
                    .and_then(ingress::first)
                    .filter(|id| !self.programs.ids().contains(id)),
                drops_answers: port.hook == Hook::Native
                    && features.is_some_and(|features| !features.delivers()),
                link_speed: interfaces::link_speed(&port.name),
                received_bytes: traffic.received,
                sent_bytes: traffic.sent,
                receive_drops: traffic.receive_drops,
                send_drops: traffic.send_drops,
                xdp_drops: self.xdp_ports.unsent(port.index),
            }
        };
        let awaited = |awaited: &Awaited| PortStatus {
            name: awaited.name.clone(),
            hook: "none yet",
            problem: Some(awaited.in_words()),
            mtu: 0,
            foreign: None,
            before: None,
            drops_answers: false,
            link_speed: None,
            received_bytes: 0,
            sent_bytes: 0,
            receive_drops: 0,
            send_drops: 0,
            xdp_drops: 0,
        };
        self.ports.iter().map(status).chain(self.awaited.iter().map(awaited)).collect()
    }

    /// Serves the interfaces with these names, and no others. New ones are attached to at the next
    /// [check](Self::lost).
    pub fn set_names(&mut self, names: &[String], pins: &Pins) {
        let interfaces = interfaces::list().unwrap_or_default();
        let is_called = |port: &Port, name: &String| {
            let interface = interfaces.iter().find(|interface| interface.index == port.index);
            port.name == *name || interface.is_some_and(|interface| interface.is_called(name))
        };
        let (kept, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.ports)
            .into_iter()
            .partition(|port| names.iter().any(|name| is_called(port, name)));
        self.ports = kept;
        for port in others {
            if let Err(error) = let_go(&port, pins) {
                warn!(
                    "interface {} is not served any more, but still attached: {error}",
                    port.name
                );
            }
            let what = format!("interface {} is not served any more", port.name);
            info!("{what}");
            self.lost.push(LostPort { index: port.index, what });
        }
        self.awaited.retain(|awaited| names.contains(&awaited.name));
        for name in names {
            let is_known = self.ports.iter().any(|port| is_called(port, name))
                || self.awaited.iter().any(|awaited| awaited.name == *name);
            if !is_known {
                self.awaited.push(Awaited { name: name.clone(), problem: None });
            }
        }
    }

    /// Numbers and names of the interfaces that it is attached to.
    pub fn attached(&self) -> BTreeMap<u32, String> {
        let attached = self.ports.iter().filter(|port| port.attachment.is_ok());
        attached.map(|port| (port.index, port.name.clone())).collect()
    }

    /// Name and speed of the link of the port with this index.
    pub fn link(&self, index: u32) -> Option<(String, u64)> {
        let port = self.ports.iter().find(|port| port.index == index)?;
        interfaces::link_speed(&port.name).map(|speed| (port.name.clone(), speed))
    }

    /// The ports and their faults, in one line.
    pub fn describe(&self) -> String {
        let of_hook = |hook: Hook| {
            let ports: Vec<_> =
                self.ports.iter().filter(|port| port.hook == hook).map(Port::in_words).collect();
            (!ports.is_empty()).then(|| format!("{} on {}", hook.name(), ports.join(", ")))
        };
        let awaited = |awaited: &Awaited| format!("waiting for {}", awaited.name);
        let awaited = self.awaited.iter().map(awaited);
        let served = [Hook::Native, Hook::Bundle].into_iter().filter_map(of_hook);
        served.chain(awaited).collect::<Vec<_>>().join("; ")
    }

    /// Detaches from all ports. The pins have been removed.
    pub fn detach(&mut self) {
        self.ports.clear();
        self.awaited.clear();
        wait_until_detached(&self.programs.ids());
    }

    /// Takes over an earlier daemon's attachment to the interface, if there is an intact one.
    fn adopt(
        &mut self,
        interface: &Interface,
        hook: Hook,
        pins: &Pins,
    ) -> Result<Option<Attachment>, StartError> {
        let owner = pins.number()?;
        let link = pins.link(interface.index);
        if link.is_none() && ingress::filtered(interface.index, owner).is_none() {
            return Ok(None);
        }
        let program = self.load(interface, hook)?;
        let taken = match link {
            Some(link) => {
                attach::take_over(&mut self.object, link, hook).ok().and_then(Attachment::by)
            }
            None => attach::take_over_filter(&mut self.object, interface, owner).ok(),
        };
        // The index may belong to another interface by now, or to one in another network namespace.
        let taken = taken.filter(|taken| taken.serves(interface.index, program));
        if taken.is_none() {
            self.lost.push(LostPort {
                index: interface.index,
                what: fault(&interface.name, Some(interface), hook),
            });
        }
        Ok(taken)
    }

    /// Attaches to an interface that the hook's program is not attached to.
    fn attach(
        &mut self,
        interface: &Interface,
        hook: Hook,
        pins: &Pins,
    ) -> Result<Attachment, StartError> {
        let owner = pins.number()?;
        pins.drop_link(interface.index)?;
        ingress::remove_filter(interface, owner)?;
        self.load(interface, hook)?;
        let Some(link) = attach::attach(&mut self.object, interface, hook)? else {
            return attach::attach_filter(&mut self.object, interface, owner);
        };
        let link = pins.keep_link(interface.index, link)?;
        Attachment::by(link)
            .ok_or_else(|| StartError::Load("the kernel does not report its link".to_owned()))
    }

    /// Loads the hook's program unless it is loaded, which takes the verifier a while; answers may
    /// leave by the interface. Returns its id.
    fn load(&mut self, interface: &Interface, hook: Hook) -> Result<u32, StartError> {
        if hook == Hook::Native {
            let copy = match self.copy.take() {
                Some(copy) => copy,
                None => {
                    attach::count_unsent(&mut self.object);
                    attach::load_copy(&mut self.object)?
                }
            };
            self.xdp_ports
                .add(interface.index, self.copy.insert(copy))
                .map_err(|error| StartError::Load(error.to_string()))?;
        }
        if let Some(id) = self.programs.id(hook) {
            return Ok(id);
        }
        let id = attach::load(&mut self.object, hook)?;
        *self.programs.slot(hook) = Some(id);
        Ok(id)
    }

    /// Attaches to the interface that has the port's name now, and logs a new result.
    fn attach_again(&mut self, number: usize, interface: Option<Interface>, pins: &Pins) {
        let port = &mut self.ports[number];
        let hook = port.hook;
        // A link that was lost must be gone first.
        let before = std::mem::replace(&mut port.attachment, Err(String::new())).err();
        let _ = pins.drop_link(port.index);
        let attached = match &interface {
            Some(interface) => {
                self.attach(interface, hook, pins).map_err(|error| error.to_string())
            }
            None => Err("there is no such interface".to_owned()),
        };
        let port = &mut self.ports[number];
        match &attached {
            Ok(_) => info!("attached to interface {} again", port.name),
            Err(now) if before.as_ref() != Some(now) => {
                warn!("cannot attach to interface {} again: {now}", port.name)
            }
            Err(_) => {}
        }
        if let (Ok(_), Some(interface)) = (&attached, interface) {
            port.index = interface.index;
            if hook == Hook::Native
                && let Err(error) = tags::show(&interface, pins)
            {
                warn!("{error}");
            }
        }
        port.attachment = attached;
    }
}

/// Releases a port: the kernel detaches the program as soon as its link is dropped, and the port's
/// settings are restored.
fn let_go(port: &Port, pins: &Pins) -> Result<(), StartError> {
    tags::hide_again(pins, Some(port.index));
    pins.drop_link(port.index)?;
    let interfaces = interfaces::list()?;
    match interfaces.iter().find(|interface| interface.index == port.index) {
        Some(interface) => Ok(ingress::remove_filter(interface, pins.number()?)?),
        None => Ok(()),
    }
}

/// Waits until these programs are on no interface. The kernel takes a while after the last
/// reference to a link is gone, and the next aggregator must not find the interface occupied.
pub fn wait_until_detached(programs: &[u32]) {
    let begin = Instant::now();
    let is_attached = |interface: &Interface| {
        let at_ingress = ingress::programs(interface).unwrap_or_default();
        interface.program.iter().chain(&at_ingress).any(|program| programs.contains(program))
    };
    while interfaces::list().is_ok_and(|interfaces| interfaces.iter().any(is_attached)) {
        if begin.elapsed() > PATIENCE {
            warn!("the program is still attached; something else holds it");
            return;
        }
        sleep(Duration::from_millis(5));
    }
}

/// That an interface which an earlier daemon has served is not among these any more.
fn what_became_of(index: u32, name: Option<&String>, interfaces: &[Interface]) -> String {
    match name {
        Some(name) if interfaces.iter().any(|interface| interface.is_called(name)) => format!(
            "interface {name} of the aggregator was made again while no aggregator ran; join again"
        ),
        Some(name) => format!("the aggregator was restarted without its interface {name}"),
        None => {
            format!("the aggregator was restarted without its interface, which was number {index}")
        }
    }
}

/// Why the hook's program is no longer attached to an interface.
fn fault(name: &str, interface: Option<&Interface>, hook: Hook) -> String {
    match (hook, interface) {
        (_, None) => format!("interface {name} of the aggregator was removed"),
        (Hook::Bundle, _) => {
            format!("the aggregator's program was detached from tc ingress of interface {name}")
        }
        (Hook::Native, Some(interface)) if interface.program.is_none() => {
            format!("the aggregator's XDP program was detached from interface {name}")
        }
        _ => format!("another XDP program took the aggregator's place on interface {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_refuses_is_said_beside_its_port() {
        let why = "native XDP cannot be used: the driver of interface \"eth1\" refuses native XDP";
        let port = |fallback: Option<&str>, attachment| Port {
            name: "eth1".to_owned(),
            index: 2,
            hook: Hook::Bundle,
            fallback: fallback.map(str::to_owned),
            mtu: 9000,
            attachment,
        };
        let serves = || Ok(Attachment::Filter(1));
        assert_eq!(port(None, serves()).in_words(), "eth1");
        assert_eq!(port(Some(why), serves()).in_words(), format!("eth1 (because {why})"));
        let gone = Err("it is gone".to_owned());
        assert_eq!(port(Some(why), gone).in_words(), "eth1 (not attached: it is gone)");
    }
}
