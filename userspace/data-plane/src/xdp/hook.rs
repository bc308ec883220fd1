//! The hook that takes an interface's frames, and the choice of the best one.

use std::fs::read_link;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use switchml_host::interfaces::{self, Interface, XdpFeatures};
use switchml_host::netlink::NetlinkError;

/// Where frames are taken, as it was asked for. What is said of each is the command line's help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Mode {
    /// Where the interface does best; the log says what that is, and why.
    Auto,
    /// XDP in the driver, frame by frame: for NICs.
    Native,
    /// tc ingress, GSO and GRO superpackets whole: for veth, virtio and what has no XDP.
    Bundle,
}

impl Mode {
    /// The mode's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Bundle => "bundle",
        }
    }
}

/// The hook that takes frames at one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// XDP in the driver: frame by frame, before anything else.
    Native,
    /// tc ingress: superpackets whole.
    Bundle,
}

impl Hook {
    /// The hook's name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native XDP",
            Self::Bundle => "bundles at tc ingress",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Native => Self::Bundle,
            Self::Bundle => Self::Native,
        }
    }
}

/// An interface's hook, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The hook.
    pub hook: Hook,
    /// Why, for people.
    pub why: String,
    /// Whether a better hook cannot be used.
    pub is_fallback: bool,
}

/// The choice of hooks for interfaces, as far as their properties are known.
pub struct Plan {
    mode: Mode,
    names: Vec<String>,
    facts: Vec<Facts>,
}

impl Plan {
    /// The plan for these interfaces; `attached` is the hook at which an earlier daemon's program
    /// serves an interface.
    ///
    /// # Errors
    ///
    /// When netlink cannot be used.
    pub fn new(
        mode: Mode,
        interfaces: &[Interface],
        attached: impl Fn(&Interface) -> Option<Hook>,
    ) -> Result<Self, NetlinkError> {
        let names = interfaces.iter().map(|interface| interface.name.clone()).collect();
        let facts = interfaces
            .iter()
            .map(|interface| Facts::of(interface, attached(interface)))
            .collect::<Result<_, _>>()?;
        Ok(Self { mode, names, facts })
    }

    /// The hooks, in the interfaces' order.
    pub fn choices(&self) -> Vec<Choice> {
        let asked = |hook| {
            vec![
                Choice { hook, why: "as requested".to_owned(), is_fallback: false };
                self.names.len()
            ]
        };
        match self.mode {
            Mode::Native => asked(Hook::Native),
            Mode::Bundle => asked(Hook::Bundle),
            Mode::Auto => choose(&self.names, &self.facts),
        }
    }

    /// Takes note that a hook cannot be used, at this interface or at none. Whether another one is
    /// left.
    pub fn refuse(&mut self, hook: Hook, number: Option<usize>, why: &str) -> bool {
        for (index, facts) in self.facts.iter_mut().enumerate() {
            if number.is_none_or(|number| number == index) && facts.why_not(hook).is_none() {
                facts.refused.push((hook, why.to_owned()));
            }
        }
        self.mode == Mode::Auto && self.facts.iter().all(|facts| facts.refused.len() < 2)
    }
}

/// The properties that decide on an interface's hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    /// The kind of a virtual interface, or the driver of a paravirtual one, if superpackets come
    /// through it whole.
    carries_superpackets: Option<String>,
    /// The XDP features of the driver; `None` if the kernel does not tell (before 6.3).
    xdp: Option<XdpFeatures>,
    /// The hook at which an earlier daemon's program serves the interface.
    attached: Option<Hook>,
    /// The hooks that cannot be used here, and why.
    refused: Vec<(Hook, String)>,
}

/// Kinds of interfaces, and drivers, through which superpackets come whole unless XDP keeps them
/// from it.
const WHOLE: [&str; 4] = ["veth", "netkit", "tun", "virtio_net"];

fn choose(names: &[String], facts: &[Facts]) -> Vec<Choice> {
    let mut choices: Vec<_> = facts.iter().map(Facts::best).collect();
    // Native XDP sends RESULTs to all by every port, so each port must deliver them.
    let deaf = choices
        .iter()
        .zip(facts)
        .position(|(choice, facts)| choice.hook == Hook::Bundle && !facts.delivers());
    if let Some(deaf) = deaf {
        for (choice, facts) in choices.iter_mut().zip(facts) {
            if choice.hook == Hook::Native
                && facts.attached.is_none()
                && facts.why_not(Hook::Bundle).is_none()
            {
                let why = format!("{} would not send what native XDP gives it", names[deaf]);
                *choice = Choice { hook: Hook::Bundle, why, is_fallback: false };
            }
        }
    }
    choices
}

impl Facts {
    fn of(interface: &Interface, attached: Option<Hook>) -> Result<Self, NetlinkError> {
        let driver = read_link(format!("/sys/class/net/{}/device/driver", interface.name)).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let names = [interface.kind.clone(), driver];
        Ok(Self {
            carries_superpackets: names
                .into_iter()
                .flatten()
                .find(|name| WHOLE.contains(&name.as_str())),
            xdp: interfaces::xdp_features(interface.index)?,
            attached,
            refused: Vec::new(),
        })
    }

    fn best(&self) -> Choice {
        let has_native = self.xdp.is_none_or(XdpFeatures::has_native);
        let (hook, why) = match (self.attached, &self.carries_superpackets, has_native) {
            (Some(hook), _, _) => (hook, "as an earlier daemon had it".to_owned()),
            (None, Some(name), _) => {
                (Hook::Bundle, format!("superpackets come whole through {name}"))
            }
            (None, None, true) => (Hook::Native, "the driver has native XDP".to_owned()),
            (None, None, false) => (Hook::Bundle, "the driver has no native XDP".to_owned()),
        };
        match self.why_not(hook) {
            None => Choice { hook, why, is_fallback: false },
            Some(reason) => {
                let why = format!("{} cannot be used: {reason}", hook.name());
                Choice { hook: hook.other(), why, is_fallback: true }
            }
        }
    }

    /// Why the hook cannot be used here, if so.
    fn why_not(&self, hook: Hook) -> Option<&str> {
        self.refused.iter().find(|(refused, _)| *refused == hook).map(|(_, why)| why.as_str())
    }

    fn delivers(&self) -> bool {
        self.xdp.is_none_or(XdpFeatures::delivers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(mode: Mode, facts: &[Facts]) -> Plan {
        Plan {
            mode,
            names: (0..facts.len()).map(|index| format!("p{index}")).collect(),
            facts: facts.to_vec(),
        }
    }

    fn hooks(plan: &Plan) -> Vec<Hook> {
        plan.choices().into_iter().map(|choice| choice.hook).collect()
    }

    fn nic() -> Facts {
        Facts { xdp: Some(XdpFeatures::ALL), ..Facts::default() }
    }

    fn veth() -> Facts {
        Facts { carries_superpackets: Some("veth".to_owned()), ..nic() }
    }

    #[test]
    fn the_best_hook_follows_from_what_the_kernel_says() {
        let hooks = |facts: &[Facts]| hooks(&plan(Mode::Auto, facts));
        let none = Some(XdpFeatures::default());
        let plain = Facts { xdp: none, ..nic() };
        assert_eq!(
            hooks(&[nic(), veth(), plain.clone()]),
            [Hook::Bundle; 3],
            "the last one is deaf to XDP"
        );
        assert_eq!(hooks(&[nic(), veth()]), [Hook::Native, Hook::Bundle]);
        assert_eq!(hooks(&[nic(), Facts { xdp: none, ..veth() }]), [Hook::Bundle; 2]);
        assert_eq!(
            hooks(&[Facts { xdp: None, ..nic() }]),
            [Hook::Native],
            "a kernel that does not tell"
        );
        assert_eq!(
            hooks(&[Facts { attached: Some(Hook::Native), ..veth() }]),
            [Hook::Native],
            "taken over"
        );
    }

    #[test]
    fn what_was_asked_for_is_not_judged() {
        for (mode, hook) in [(Mode::Native, Hook::Native), (Mode::Bundle, Hook::Bundle)] {
            let mut plan = plan(mode, &[nic(), veth()]);
            assert_eq!(hooks(&plan), [hook; 2]);
            assert!(!plan.refuse(hook, Some(0), "it is broken"), "nothing else was asked for");
        }
    }

    #[test]
    fn what_cannot_be_used_is_replaced_by_the_other_hook_and_said() {
        let mut plan = plan(Mode::Auto, &[nic(), veth(), veth()]);
        assert!(plan.refuse(Hook::Bundle, None, "the verifier refused it"), "native XDP is left");
        assert_eq!(hooks(&plan), [Hook::Native; 3]);
        let choices = plan.choices();
        assert_eq!(choices[1].why, "bundles at tc ingress cannot be used: the verifier refused it");
        assert_eq!(
            choices.iter().map(|choice| choice.is_fallback).collect::<Vec<_>>(),
            [false, true, true]
        );
        assert!(
            !plan.refuse(Hook::Native, Some(2), "its MTU is too large"),
            "nothing is left at p2"
        );
    }

    #[test]
    fn a_hook_that_one_interface_refuses_stays_in_use_at_the_others() {
        let mut plan = plan(Mode::Auto, &[nic(), nic()]);
        assert!(plan.refuse(Hook::Native, Some(1), "its MTU is too large"));
        assert_eq!(hooks(&plan), [Hook::Native, Hook::Bundle]);
    }
}
