//! Where at an interface frames are taken, and which place is the best one.

use std::fs::read_link;

use serde::{Deserialize, Serialize};

use super::interfaces::{self, Interface, NetlinkError, XdpFeatures};

/// Where frames are taken, as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// For each interface where that is best.
    Auto,
    /// By [`Hook::Native`].
    Native,
    /// By [`Hook::Bundle`].
    Bundle,
    /// By [`Hook::Generic`].
    Generic,
}

impl Mode {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Bundle => "bundle",
            Self::Generic => "generic",
        }
    }
}

/// Where frames are taken at one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// XDP in the driver: frame by frame, before anything else.
    Native,
    /// tc ingress: superpackets whole.
    Bundle,
    /// XDP in the network stack, with any driver.
    Generic,
}

impl Hook {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native XDP",
            Self::Bundle => "bundles at tc ingress",
            Self::Generic => "generic XDP",
        }
    }
}

/// An interface's hook, and for what reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The hook.
    pub hook: Hook,
    /// Why, for people.
    pub why: String,
}

/// What decides on an interface's hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    /// Whether the kernel attaches programs at tc ingress by links (Linux 6.6).
    has_tcx: bool,
    /// The kind of a virtual interface, or the driver of a paravirtual one, if superpackets come through it whole.
    carries_superpackets: Option<String>,
    /// What its driver does in XDP; `None` if the kernel does not tell (before 6.3).
    xdp: Option<XdpFeatures>,
}

/// Kinds of interfaces, and drivers, through which superpackets come whole unless XDP keeps them from it.
const WHOLE: [&str; 4] = ["veth", "netkit", "tun", "virtio_net"];

/// The hooks of these interfaces, in their order.
///
/// # Errors
///
/// When netlink cannot be used.
pub fn choose(mode: Mode, interfaces: &[Interface]) -> Result<Vec<Choice>, NetlinkError> {
    let asked = |hook| Ok(vec![Choice { hook, why: "as asked for".to_owned() }; interfaces.len()]);
    match mode {
        Mode::Native => asked(Hook::Native),
        Mode::Bundle => asked(Hook::Bundle),
        Mode::Generic => asked(Hook::Generic),
        Mode::Auto => {
            let facts = interfaces.iter().map(Facts::of).collect::<Result<Vec<_>, _>>()?;
            Ok(choose_by(interfaces, &facts))
        }
    }
}

fn choose_by(interfaces: &[Interface], facts: &[Facts]) -> Vec<Choice> {
    let mut choices: Vec<_> = facts.iter().map(Facts::best).collect();
    // What native XDP sends to all must get through every port.
    let deaf = choices.iter().zip(facts).position(|(choice, facts)| choice.hook == Hook::Bundle && !facts.delivers());
    if let Some(deaf) = deaf {
        for choice in choices.iter_mut().filter(|choice| choice.hook == Hook::Native) {
            let why = format!("{} would not send what native XDP gives it", interfaces[deaf].name);
            *choice = Choice { hook: Hook::Bundle, why };
        }
    }
    choices
}

impl Facts {
    fn of(interface: &Interface) -> Result<Self, NetlinkError> {
        let driver = read_link(format!("/sys/class/net/{}/device/driver", interface.name)).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let names = [interface.kind.clone(), driver];
        Ok(Self {
            has_tcx: interfaces::at_ingress(&interface.name).is_some(),
            carries_superpackets: names.into_iter().flatten().find(|name| WHOLE.contains(&name.as_str())),
            xdp: interfaces::xdp_features(interface.index)?,
        })
    }

    fn best(&self) -> Choice {
        let choice = |hook, why: &str| Choice { hook, why: why.to_owned() };
        let has_native = self.xdp.is_none_or(XdpFeatures::has_native);
        match (&self.carries_superpackets, has_native) {
            _ if !self.has_tcx && has_native => choice(Hook::Native, "the kernel has no tcx (Linux 6.6) for bundles"),
            _ if !self.has_tcx => {
                choice(Hook::Generic, "no native XDP in the driver, and no tcx (Linux 6.6) for bundles")
            }
            (Some(name), _) => choice(Hook::Bundle, &format!("superpackets come whole through {name}")),
            (None, true) => choice(Hook::Native, "the driver has native XDP"),
            (None, false) => choice(Hook::Bundle, "the driver has no native XDP"),
        }
    }

    fn delivers(&self) -> bool {
        self.xdp.is_none_or(XdpFeatures::delivers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str) -> Interface {
        Interface { name: name.to_owned(), ..Interface::default() }
    }

    fn hooks(facts: &[Facts]) -> Vec<Hook> {
        let interfaces: Vec<_> = (0..facts.len()).map(|index| interface(&format!("p{index}"))).collect();
        choose_by(&interfaces, facts).into_iter().map(|choice| choice.hook).collect()
    }

    #[test]
    fn the_best_hook_follows_from_what_the_kernel_says() {
        let nic = Facts { has_tcx: true, carries_superpackets: None, xdp: Some(XdpFeatures::ALL) };
        let veth = Facts { carries_superpackets: Some("veth".to_owned()), ..nic.clone() };
        let none = Some(XdpFeatures::default());
        let plain = Facts { xdp: none, ..nic.clone() };
        assert_eq!(
            hooks(&[nic.clone(), veth.clone(), plain.clone()]),
            [Hook::Bundle; 3],
            "the last one is deaf to XDP"
        );
        assert_eq!(hooks(&[nic.clone(), veth.clone()]), [Hook::Native, Hook::Bundle]);
        assert_eq!(hooks(&[nic.clone(), Facts { xdp: none, ..veth.clone() }]), [Hook::Bundle; 2]);
        assert_eq!(hooks(&[Facts { xdp: None, ..nic.clone() }]), [Hook::Native], "a kernel that does not tell");
        let old = |facts: &Facts| Facts { has_tcx: false, ..facts.clone() };
        assert_eq!(hooks(&[old(&nic), old(&veth), old(&plain)]), [Hook::Native, Hook::Native, Hook::Generic]);
    }

    #[test]
    fn what_was_asked_for_is_not_judged() {
        for (mode, hook) in [(Mode::Native, Hook::Native), (Mode::Bundle, Hook::Bundle), (Mode::Generic, Hook::Generic)]
        {
            let choices = choose(mode, &[interface("lo"), interface("lo")]).expect("nothing is asked");
            assert_eq!(choices.iter().map(|choice| choice.hook).collect::<Vec<_>>(), [hook; 2]);
        }
    }
}
