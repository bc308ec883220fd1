//! The switch's ports, from a TOML file.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A port of the front panel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Name on the front panel: connector and channel, such as `1/0`.
    pub name: String,
    /// Speed of the link.
    pub speed: Speed,
    /// Forward error correction.
    #[serde(default)]
    pub fec: Fec,
    /// Whether both ends agree on speed and error correction.
    #[serde(default)]
    pub auto_negotiation: AutoNegotiation,
}

/// Speed of a link, in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum Speed {
    #[serde(rename = "10G")]
    Gigabit10,
    #[serde(rename = "25G")]
    Gigabit25,
    #[serde(rename = "40G")]
    Gigabit40,
    #[serde(rename = "50G")]
    Gigabit50,
    #[serde(rename = "100G")]
    Gigabit100,
}

/// Forward error correction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fec {
    /// None.
    #[default]
    None,
    /// Clause 74 of IEEE 802.3.
    Firecode,
    /// Clause 91 or 108.
    ReedSolomon,
}

/// Where the frames that leave by a port go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loopback {
    /// To the port's cable.
    Off,
    /// Back into the port, and nothing from its cable gets in.
    On,
}

/// Whether both ends agree on speed and error correction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AutoNegotiation {
    /// The switch's default for the medium.
    #[default]
    Default,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Why the ports cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: {why}; a port is a table such as [[port]] name = \"1/0\", speed = \"100G\", and \
     optionally fec, auto_negotiation",
    .path.display()
)]
pub struct PortsError {
    path: PathBuf,
    why: String,
}

/// No port of the file has the name of the one towards a combiner's parent.
#[derive(Debug, thiserror::Error)]
#[error(
    "--uplink-port {given}: {} lists no such port, but {ports}; give one of these, or add it there",
    .path.display()
)]
pub struct UplinkError {
    given: String,
    path: PathBuf,
    ports: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    port: Vec<Port>,
}

impl Speed {
    /// Gb/s.
    pub const fn gigabits(self) -> u64 {
        match self {
            Self::Gigabit10 => 10,
            Self::Gigabit25 => 25,
            Self::Gigabit40 => 40,
            Self::Gigabit50 => 50,
            Self::Gigabit100 => 100,
        }
    }

    /// The switch's name for it.
    pub const fn bfrt(self) -> &'static str {
        match self {
            Self::Gigabit10 => "BF_SPEED_10G",
            Self::Gigabit25 => "BF_SPEED_25G",
            Self::Gigabit40 => "BF_SPEED_40G",
            Self::Gigabit50 => "BF_SPEED_50G",
            Self::Gigabit100 => "BF_SPEED_100G",
        }
    }
}

impl Fec {
    /// The switch's name for it.
    pub const fn bfrt(self) -> &'static str {
        match self {
            Self::None => "BF_FEC_TYP_NONE",
            Self::Firecode => "BF_FEC_TYP_FIRECODE",
            Self::ReedSolomon => "BF_FEC_TYP_REED_SOLOMON",
        }
    }
}

impl Loopback {
    /// The switch's name for it.
    pub const fn bfrt(self) -> &'static str {
        match self {
            Self::Off => "BF_LPBK_NONE",
            Self::On => "BF_LPBK_MAC_NEAR",
        }
    }
}

impl AutoNegotiation {
    /// The switch's name for it.
    pub const fn bfrt(self) -> &'static str {
        match self {
            Self::Default => "PM_AN_DEFAULT",
            Self::On => "PM_AN_FORCE_ENABLE",
            Self::Off => "PM_AN_FORCE_DISABLE",
        }
    }
}

/// The place of the port that was given as the one towards a combiner's parent.
pub fn uplink(ports: &[Port], given: &str, path: &Path) -> Result<usize, UplinkError> {
    let place = ports.iter().position(|port| port.name == given);
    place.ok_or_else(|| UplinkError {
        given: given.to_owned(),
        path: path.to_owned(),
        ports: ports.iter().map(|port| &*port.name).collect::<Vec<_>>().join(", "),
    })
}

/// The ports of a file, each once.
pub fn read(path: &Path) -> Result<Vec<Port>, PortsError> {
    let wrong = |why: String| PortsError { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    parse(&text).map_err(wrong)
}

fn parse(text: &str) -> Result<Vec<Port>, String> {
    let one_line = |error: toml::de::Error| {
        let line = error.span().map(|span| text[..span.start].lines().count().max(1));
        let line = line.map_or(String::new(), |line| format!("line {line}: "));
        format!("{line}{}", error.message().replace('\n', ", "))
    };
    let ports = toml::from_str::<File>(text).map_err(one_line)?.port;
    if ports.is_empty() {
        return Err("no ports".to_owned());
    }
    let twice =
        (1..ports.len()).find(|&i| ports[..i].iter().any(|port| port.name == ports[i].name));
    match twice {
        Some(i) => Err(format!("port {} is listed twice", ports[i].name)),
        None => Ok(ports),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_differs_from_the_plainest_port() {
        let text = "[[port]]\nname = \"1/0\"\nspeed = \"100G\"\nfec = \"reed-solomon\"\n\
                    auto_negotiation = \"off\"\n\n\
                    [[port]]\nname = \"2/3\"\nspeed = \"25G\"\n";
        let port = |name: &str, speed, fec, auto_negotiation| Port {
            name: name.to_owned(),
            speed,
            fec,
            auto_negotiation,
        };
        let expected = [
            port("1/0", Speed::Gigabit100, Fec::ReedSolomon, AutoNegotiation::Off),
            port("2/3", Speed::Gigabit25, Fec::None, AutoNegotiation::Default),
        ];
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn what_no_port_has_is_refused_in_one_line_that_says_where() {
        let port = "[[port]]\nname = \"1/0\"\nspeed = \"100G\"\n";
        for (text, why) in [
            ("", "no ports"),
            (&format!("{port}{port}"), "port 1/0 is listed twice"),
            ("[[port]]\nname = \"1/0\"\n", "missing field `speed`"),
            (&format!("{port}fec = \"rs\"\n"), "line 4: unknown variant `rs`"),
            (&format!("{port}mtu = 9000\n"), "unknown field `mtu`"),
            (&port.replace("100G", "1T"), "line 3: unknown variant `1T`"),
            ("port", "line 1: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why) && !error.contains('\n'), "{error:?} of {text:?}");
        }
    }
}
