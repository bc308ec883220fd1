//! Sets up the switch's ports: those that stations are behind, and those in loopback, by which
//! frames come in again.

use std::collections::BTreeMap;

use rbfrt::table::{MatchValue, Request, TableEntry, ToBytes};

use super::connection::Command;
use super::layout::{FreePort, Layout};
use super::ports::{AutoNegotiation, Fec, Loopback, Port, Speed};
use super::recirculation::{self, PORT_METADATA, RECIRCULATES};
use super::{Tofino, exclusion};
use crate::entries::PORTS_OF_PIPELINE;
use crate::switch::{Switch, SwitchError};

/// Connectors of the front panel are numbered from 1, and are fewer.
const CONNECTORS: u16 = 64;
/// Ports that a connector may be split into.
const CHANNELS: u16 = 4;
/// Ports of the front panel have the lowest numbers of their pipeline.
const FRONT_PORTS: u16 = 64;

impl Tofino {
    /// The number of a listed port.
    pub(super) fn number_of(&self, port: &Port) -> Result<u16, SwitchError> {
        self.number_by(&port.name).map_err(|error| of_port(&port.name, &error))
    }

    fn number_by(&self, name: &str) -> Result<u16, SwitchError> {
        let by_name =
            Request::new("$PORT_STR_INFO").match_key("$PORT_NAME", MatchValue::exact(name));
        let found = self.connection.run(Command::Read(vec![by_name]))?;
        let number = found.first().and_then(|entry| entry.get_action_data("$DEV_PORT").ok());
        let number = number.map(|data| data.as_u32() as u16);
        number.ok_or_else(|| SwitchError("there is no port of that name".to_owned()))
    }

    /// The ports of the front panel whose connector has no listed port.
    pub(super) fn free_ports(&self, listed: &[Port]) -> Vec<FreePort> {
        let is_free = |connector: &u16| {
            let before = format!("{connector}/");
            !listed.iter().any(|port| port.name.starts_with(&before))
        };
        let port = |connector| {
            let name = format!("{connector}/0");
            // Switches have different numbers of connectors.
            let number = self.number_by(&name).ok()?;
            (number % PORTS_OF_PIPELINE < FRONT_PORTS).then_some(FreePort { name, number })
        };
        (1..=CONNECTORS).filter(is_free).filter_map(port).collect()
    }

    /// Brings the listed ports up, and puts others in loopback, for packets of several parts from
    /// ranks at these pipelines.
    pub(super) fn set_up(
        &mut self,
        listed: &[Port],
        layouts: &BTreeMap<u16, Layout>,
    ) -> Result<(), SwitchError> {
        let loops = layouts.values().flat_map(Layout::loops);
        let loops: BTreeMap<_, _> = loops.map(|port| (port.number, port)).collect();
        self.end_loopback_of_all_but(&loops);
        // Frames from other ports have the id 0.
        for (exclusion_id, port) in (1..).zip(listed) {
            let number = self.number_of(port)?;
            let failed = |error| of_port(&port.name, &error);
            self.bring_up(number, port, Loopback::Off).map_err(failed)?;
            self.keep_from(number, exclusion_id).map_err(failed)?;
            self.ports.push(number);
        }
        for (number, FreePort { name, .. }) in loops {
            let port = Port {
                name: name.clone(),
                speed: Speed::Gigabit100,
                fec: Fec::None,
                auto_negotiation: AutoNegotiation::Off,
            };
            self.bring_up(number, &port, Loopback::On).map_err(|error| of_port(name, &error))?;
            self.tell_parser_of_loopback(number)?;
        }
        for (pipeline, layout) in layouts {
            let entries = recirculation::entries(*pipeline, &layout.ports());
            let requests = entries.iter().map(|entry| self.request(entry)).collect();
            self.run(Command::Insert(requests))?;
        }
        Ok(())
    }

    /// Brings a port up. A port with the right settings stays up.
    fn bring_up(&self, number: u16, port: &Port, loopback: Loopback) -> Result<(), SwitchError> {
        let settings = [
            ("$SPEED", port.speed.bfrt()),
            ("$FEC", port.fec.bfrt()),
            ("$AUTO_NEGOTIATION", port.auto_negotiation.bfrt()),
            ("$LOOPBACK_MODE", loopback.bfrt()),
        ];
        // A port that does not exist cannot be read.
        let is_right = self.connection.run(Command::Read(vec![entry(number)])).is_ok_and(|found| {
            found.iter().any(|found| {
                let is_enabled = found
                    .get_action_data("$PORT_ENABLE")
                    .is_ok_and(|data| data.get_data().to_bool());
                is_enabled && settings.into_iter().all(|(name, value)| has(found, name, value))
            })
        });
        if is_right {
            return Ok(());
        }
        // A port in loopback takes its whole connector, which may have been split.
        let taken = if loopback == Loopback::On { CHANNELS } else { 1 };
        for number in number..number + taken {
            // A port that does not exist cannot be deleted, either. A port's speed cannot be
            // changed, so the port is made again.
            let _ = self.run(Command::Delete(vec![entry(number)]));
        }
        let wanted = settings
            .into_iter()
            .fold(entry(number), |request, (name, value)| request.action_data(name, value));
        self.run(Command::Insert(vec![wanted.action_data("$PORT_ENABLE", true)]))
    }

    /// An earlier daemon may have needed other ports.
    fn end_loopback_of_all_but(&self, loops: &BTreeMap<u16, &FreePort>) {
        // A switch without ports cannot be read.
        let ports = self.connection.run(Command::Read(vec![Request::new("$PORT")]));
        for port in ports.unwrap_or_default() {
            let Ok(key) = port.get_key("$DEV_PORT") else { continue };
            let number = key.get_exact_value().to_u32() as u16;
            let is_looped = has(&port, "$LOOPBACK_MODE", Loopback::On.bfrt());
            if is_looped && !loops.contains_key(&number) {
                let _ = self.run(Command::Delete(vec![entry(number)]));
            }
        }
    }

    /// Gives frames from a port this exclusion id, and keeps flooded frames with this id from
    /// leaving by the port.
    fn keep_from(&self, port: u16, id: u16) -> Result<(), SwitchError> {
        let pruned = Request::new("$pre.prune")
            .match_key("$MULTICAST_L2_XID", MatchValue::exact(id))
            .action_data_repeated("$DEV_PORT", vec![u32::from(port)]);
        // An existing entry is overwritten.
        self.run(Command::Insert(vec![pruned]))?;
        self.insert(&exclusion(port, id))
    }

    fn tell_parser_of_loopback(&self, port: u16) -> Result<(), SwitchError> {
        let table = self.names.table(PORT_METADATA.name);
        let told = Request::new(&table.name)
            .match_key(table.field(PORT_METADATA.key[0]), MatchValue::exact(port))
            .action_data(RECIRCULATES, 1u8);
        self.run(Command::Insert(vec![told]))
    }
}

fn entry(number: u16) -> Request {
    Request::new("$PORT").match_key("$DEV_PORT", MatchValue::exact(u32::from(number)))
}

fn of_port(name: &str, error: &SwitchError) -> SwitchError {
    SwitchError(format!("port {name}: {error}"))
}

/// Whether a port that was read has this setting.
fn has(port: &TableEntry, name: &str, value: &str) -> bool {
    port.get_action_data(name).is_ok_and(|data| data.get_data() == value.as_bytes())
}
