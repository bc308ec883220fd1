//! Calls of `simple_switch`'s control interface: Thrift, with the services, methods and field
//! numbers of bmv2's `standard.thrift` and `simple_pre_lag.thrift`. Only the calls that are needed,
//! written by hand: generating them would need the Thrift compiler at build time.

use std::io::{BufReader, BufWriter};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use thrift::protocol::{
    TBinaryInputProtocol, TBinaryOutputProtocol, TFieldIdentifier, TInputProtocol, TListIdentifier,
    TMessageIdentifier, TMessageType, TMultiplexedOutputProtocol, TOutputProtocol,
    TStructIdentifier, TType,
};

/// Longest time of a call to `simple_switch`. Most take less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);
/// The only context of `simple_switch`.
const CONTEXT: i32 = 0;
/// The replication id of multicast nodes. It would tell a group's nodes apart; here each group has
/// one.
const REPLICATION_ID: i32 = 0;

/// The services of `simple_switch`, by the names under which it multiplexes them.
const STANDARD: &str = "standard";
const MULTICAST: &str = "simple_pre_lag";

/// Why a call had no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection failed, or a message on it was wrong.
    #[error("{0}")]
    Connection(#[from] thrift::Error),
    /// `simple_switch` refused.
    #[error("{0}")]
    Refused(String),
}

/// The match for a field of a table's key: bytes as long as the field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// The field has this value.
    Exact(Vec<u8>),
    /// The field's bits under the mask have these values.
    Ternary {
        /// The bits.
        value: Vec<u8>,
        /// The mask.
        mask: Vec<u8>,
    },
}

/// A port of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port's number in the P4 program.
    pub number: u16,
    /// The port's interface.
    pub interface: String,
}

/// A connection to `simple_switch`, for one call at a time.
pub struct Client {
    stream: TcpStream,
    input: TBinaryInputProtocol<BufReader<TcpStream>>,
    calls: i32,
}

/// The relevant part of `bm_mc_get_entries`' answer about multicast groups.
#[derive(Deserialize)]
struct Multicast {
    mgrps: Vec<Group>,
    l1_handles: Vec<Node>,
}

#[derive(Deserialize)]
struct Group {
    id: i32,
}

#[derive(Deserialize)]
struct Node {
    handle: i32,
}

impl Client {
    /// Connects to the Thrift port of a `simple_switch`.
    pub fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let input = TBinaryInputProtocol::new(BufReader::new(stream.try_clone()?), true);
        Ok(Self { stream, input, calls: 0 })
    }

    /// The program that it runs: the JSON that p4c wrote.
    pub fn program(&mut self) -> Result<String, CallError> {
        self.call(STANDARD, "bm_get_config", |_| Ok(()), |input| input.read_string())
    }

    /// The socket of the notifications; empty if `simple_switch` was built without them.
    pub fn notifications(&mut self) -> Result<String, CallError> {
        self.call(
            STANDARD,
            "bm_mgmt_get_info",
            |_| Ok(()),
            |input| {
                let mut socket = String::new();
                read_struct(input, |input, field| {
                    let found = field == 3;
                    if found {
                        socket = input.read_string()?;
                    }
                    Ok(found)
                })?;
                Ok(socket)
            },
        )
    }

    /// The switch's ports.
    pub fn ports(&mut self) -> Result<Vec<Port>, CallError> {
        self.call(
            STANDARD,
            "bm_dev_mgr_show_ports",
            |_| Ok(()),
            |input| {
                let list = input.read_list_begin()?;
                let ports =
                    (0..list.size).map(|_| read_port(input)).collect::<thrift::Result<_>>()?;
                input.read_list_end()?;
                Ok(ports)
            },
        )
    }

    /// Adds an entry, and returns its handle. Of ternary entries that match, that with the lowest
    /// priority counts.
    pub fn add_entry(
        &mut self,
        table: &str,
        key: &[Match],
        action: &str,
        data: &[Vec<u8>],
        priority: i32,
    ) -> Result<i32, CallError> {
        self.call(
            STANDARD,
            "bm_mt_add_entry",
            |call| {
                call.i32(1, CONTEXT)?;
                call.string(2, table)?;
                call.list(3, TType::Struct, key, |out, part| {
                    write_struct(out, |fields| write_match(fields, part))
                })?;
                call.string(4, action)?;
                call.list(5, TType::String, data, |out, value| out.write_bytes(value))?;
                call.structure(6, |options| options.i32(1, priority))
            },
            |input| input.read_i32(),
        )
    }

    /// Gives an entry another action.
    pub fn modify_entry(
        &mut self,
        table: &str,
        handle: i32,
        action: &str,
        data: &[Vec<u8>],
    ) -> Result<(), CallError> {
        self.perform(STANDARD, "bm_mt_modify_entry", |call| {
            call.i32(1, CONTEXT)?;
            call.string(2, table)?;
            call.i32(3, handle)?;
            call.string(4, action)?;
            call.list(5, TType::String, data, |out, value| out.write_bytes(value))
        })
    }

    /// Removes an entry.
    pub fn delete_entry(&mut self, table: &str, handle: i32) -> Result<(), CallError> {
        self.perform(STANDARD, "bm_mt_delete_entry", |call| {
            call.i32(1, CONTEXT)?;
            call.string(2, table)?;
            call.i32(3, handle)
        })
    }

    /// Removes all entries of a table, and gives it back the default action that the program says.
    pub fn clear_table(&mut self, table: &str) -> Result<(), CallError> {
        self.perform(STANDARD, "bm_mt_clear_entries", |call| {
            call.i32(1, CONTEXT)?;
            call.string(2, table)?;
            call.bool(3, true)
        })
    }

    /// Sets a table's action for packets that match no entry.
    pub fn set_default_action(
        &mut self,
        table: &str,
        action: &str,
        data: &[Vec<u8>],
    ) -> Result<(), CallError> {
        self.perform(STANDARD, "bm_mt_set_default_action", |call| {
            call.i32(1, CONTEXT)?;
            call.string(2, table)?;
            call.string(3, action)?;
            call.list(4, TType::String, data, |out, value| out.write_bytes(value))
        })
    }

    /// Gives a table back the default action that the program says.
    pub fn reset_default_action(&mut self, table: &str) -> Result<(), CallError> {
        self.perform(STANDARD, "bm_mt_reset_default_entry", |call| {
            call.i32(1, CONTEXT)?;
            call.string(2, table)
        })
    }

    /// Writes the same value to entries of a register.
    pub fn write_registers(
        &mut self,
        register: &str,
        entries: Range<u32>,
        value: u32,
    ) -> Result<(), CallError> {
        self.perform(STANDARD, "bm_register_write_range", |call| {
            call.i32(1, CONTEXT)?;
            call.string(2, register)?;
            call.i32(3, entries.start as i32)?;
            call.i32(4, entries.end as i32)?;
            call.i64(5, value.into())
        })
    }

    /// An entry of a register.
    pub fn read_register(&mut self, register: &str, index: u32) -> Result<u32, CallError> {
        let value = self.call(
            STANDARD,
            "bm_register_read",
            |call| {
                call.i32(1, CONTEXT)?;
                call.string(2, register)?;
                call.i32(3, index as i32)
            },
            |input| input.read_i64(),
        )?;
        Ok(value as u32)
    }

    /// Packets that a counter has counted.
    pub fn packets(&mut self, counter: &str, index: u32) -> Result<u64, CallError> {
        self.call(
            STANDARD,
            "bm_counter_read",
            |call| {
                call.i32(1, CONTEXT)?;
                call.string(2, counter)?;
                call.i32(3, index as i32)
            },
            |input| {
                let mut packets = 0;
                read_struct(input, |input, field| {
                    let found = field == 2;
                    if found {
                        packets = input.read_i64()?;
                    }
                    Ok(found)
                })?;
                Ok(packets as u64)
            },
        )
    }

    /// Sets all of a counter's entries to zero.
    pub fn clear_counter(&mut self, counter: &str) -> Result<(), CallError> {
        self.perform(STANDARD, "bm_counter_reset_all", |call| {
            call.i32(1, CONTEXT)?;
            call.string(2, counter)
        })
    }

    /// Sets the number of samples in a message of digests.
    pub fn set_digest_size(&mut self, list: i32, samples: i32) -> Result<(), CallError> {
        self.perform(STANDARD, "bm_learning_set_buffer_size", |call| {
            call.i32(1, CONTEXT)?;
            call.i32(2, list)?;
            call.i32(3, samples)
        })
    }

    /// Acknowledges a digest; until then `simple_switch` does not report the same sample again.
    pub fn acknowledge_digest(&mut self, list: i32, buffer: i64) -> Result<(), CallError> {
        self.perform(STANDARD, "bm_learning_ack_buffer", |call| {
            call.i32(1, CONTEXT)?;
            call.i32(2, list)?;
            call.i64(3, buffer)
        })
    }

    /// Makes a multicast group of these ports, and returns the handle of its only node.
    pub fn create_group(&mut self, group: u16, ports: &[u16]) -> Result<i32, CallError> {
        // A group's handle is its number.
        self.call(
            MULTICAST,
            "bm_mc_mgrp_create",
            |call| {
                call.i32(1, CONTEXT)?;
                call.i32(2, group.into())
            },
            |input| input.read_i32(),
        )?;
        let node = self.call(
            MULTICAST,
            "bm_mc_node_create",
            |call| {
                call.i32(1, CONTEXT)?;
                call.i32(2, REPLICATION_ID)?;
                call.string(3, &port_map(ports))?;
                call.string(4, "")
            },
            |input| input.read_i32(),
        )?;
        self.perform(MULTICAST, "bm_mc_node_associate", |call| {
            call.i32(1, CONTEXT)?;
            call.i32(2, group.into())?;
            call.i32(3, node)
        })?;
        Ok(node)
    }

    /// Gives a group's node other ports.
    pub fn update_node(&mut self, node: i32, ports: &[u16]) -> Result<(), CallError> {
        self.perform(MULTICAST, "bm_mc_node_update", |call| {
            call.i32(1, CONTEXT)?;
            call.i32(2, node)?;
            call.string(3, &port_map(ports))?;
            call.string(4, "")
        })
    }

    /// Removes a group and its node.
    pub fn destroy_group(&mut self, group: u16, node: i32) -> Result<(), CallError> {
        self.destroy_node(node)?;
        self.perform(MULTICAST, "bm_mc_mgrp_destroy", |call| {
            call.i32(1, CONTEXT)?;
            call.i32(2, group.into())
        })
    }

    /// Removes all multicast groups.
    pub fn clear_groups(&mut self) -> Result<(), CallError> {
        let text = self.call(
            MULTICAST,
            "bm_mc_get_entries",
            |call| call.i32(1, CONTEXT),
            |input| input.read_string(),
        )?;
        let found: Multicast = serde_json::from_str(&text).map_err(|error| {
            CallError::Refused(format!("its multicast groups cannot be read: {error}"))
        })?;
        // Nodes first: `simple_switch` does not expect a node without its group.
        for node in found.l1_handles {
            self.destroy_node(node.handle)?;
        }
        for group in found.mgrps {
            self.perform(MULTICAST, "bm_mc_mgrp_destroy", |call| {
                call.i32(1, CONTEXT)?;
                call.i32(2, group.id)
            })?;
        }
        Ok(())
    }

    fn destroy_node(&mut self, node: i32) -> Result<(), CallError> {
        self.perform(MULTICAST, "bm_mc_node_destroy", |call| {
            call.i32(1, CONTEXT)?;
            call.i32(2, node)
        })
    }

    /// A call without a result.
    fn perform(
        &mut self,
        service: &str,
        method: &str,
        arguments: impl FnOnce(&mut Fields<'_>) -> thrift::Result<()>,
    ) -> Result<(), CallError> {
        self.exchange(service, method, arguments, |_| Ok(())).map(drop)
    }

    /// A call with a result.
    fn call<T>(
        &mut self,
        service: &str,
        method: &str,
        arguments: impl FnOnce(&mut Fields<'_>) -> thrift::Result<()>,
        result: impl FnMut(&mut dyn TInputProtocol) -> thrift::Result<T>,
    ) -> Result<T, CallError> {
        let result = self.exchange(service, method, arguments, result)?;
        result.ok_or_else(|| CallError::Refused(format!("it answered {method} without a result")))
    }

    fn exchange<T>(
        &mut self,
        service: &str,
        method: &str,
        arguments: impl FnOnce(&mut Fields<'_>) -> thrift::Result<()>,
        mut result: impl FnMut(&mut dyn TInputProtocol) -> thrift::Result<T>,
    ) -> Result<Option<T>, CallError> {
        self.calls = self.calls.wrapping_add(1);
        let mut output = TMultiplexedOutputProtocol::new(
            service,
            TBinaryOutputProtocol::new(BufWriter::new(&self.stream), true),
        );
        output.write_message_begin(&TMessageIdentifier::new(
            method,
            TMessageType::Call,
            self.calls,
        ))?;
        write_struct(&mut output, arguments)?;
        output.write_message_end()?;
        output.flush()?;

        let input: &mut dyn TInputProtocol = &mut self.input;
        let message = input.read_message_begin()?;
        thrift::protocol::verify_expected_sequence_number(self.calls, message.sequence_number)?;
        if message.message_type == TMessageType::Exception {
            let error = thrift::Error::read_application_error_from_in_protocol(input)?;
            input.read_message_end()?;
            return Err(CallError::Connection(thrift::Error::Application(error)));
        }
        let (mut returned, mut refused) = (None, None);
        read_struct(input, |input, field| {
            match field {
                0 => returned = Some(result(input)?),
                _ => refused = Some(read_code(input)?),
            }
            Ok(true)
        })?;
        input.read_message_end()?;
        match refused {
            Some(code) => Err(CallError::Refused(explain(method, code))),
            None => Ok(returned),
        }
    }
}

/// Writes fields of a structure.
struct Fields<'a>(&'a mut dyn TOutputProtocol);

impl Fields<'_> {
    fn field(
        &mut self,
        number: i16,
        kind: TType,
        write: impl FnOnce(&mut dyn TOutputProtocol) -> thrift::Result<()>,
    ) -> thrift::Result<()> {
        self.0.write_field_begin(&TFieldIdentifier::new("", kind, number))?;
        write(self.0)?;
        self.0.write_field_end()
    }

    fn bool(&mut self, number: i16, value: bool) -> thrift::Result<()> {
        self.field(number, TType::Bool, |out| out.write_bool(value))
    }

    fn i32(&mut self, number: i16, value: i32) -> thrift::Result<()> {
        self.field(number, TType::I32, |out| out.write_i32(value))
    }

    fn i64(&mut self, number: i16, value: i64) -> thrift::Result<()> {
        self.field(number, TType::I64, |out| out.write_i64(value))
    }

    fn string(&mut self, number: i16, value: &str) -> thrift::Result<()> {
        self.field(number, TType::String, |out| out.write_string(value))
    }

    fn bytes(&mut self, number: i16, value: &[u8]) -> thrift::Result<()> {
        self.field(number, TType::String, |out| out.write_bytes(value))
    }

    fn structure(
        &mut self,
        number: i16,
        write: impl FnOnce(&mut Fields<'_>) -> thrift::Result<()>,
    ) -> thrift::Result<()> {
        self.field(number, TType::Struct, |out| write_struct(out, write))
    }

    fn list<T>(
        &mut self,
        number: i16,
        kind: TType,
        values: &[T],
        mut write: impl FnMut(&mut dyn TOutputProtocol, &T) -> thrift::Result<()>,
    ) -> thrift::Result<()> {
        self.field(number, TType::List, |out| {
            out.write_list_begin(&TListIdentifier::new(kind, values.len() as i32))?;
            values.iter().try_for_each(|value| write(out, value))?;
            out.write_list_end()
        })
    }
}

fn write_struct(
    out: &mut dyn TOutputProtocol,
    write: impl FnOnce(&mut Fields<'_>) -> thrift::Result<()>,
) -> thrift::Result<()> {
    out.write_struct_begin(&TStructIdentifier::new(""))?;
    write(&mut Fields(out))?;
    out.write_field_stop()?;
    out.write_struct_end()
}

/// A `BmMatchParam`.
fn write_match(fields: &mut Fields<'_>, part: &Match) -> thrift::Result<()> {
    match part {
        Match::Exact(value) => {
            fields.i32(1, 0)?;
            fields.structure(2, |exact| exact.bytes(1, value))
        }
        Match::Ternary { value, mask } => {
            fields.i32(1, 2)?;
            fields.structure(4, |ternary| {
                ternary.bytes(1, value)?;
                ternary.bytes(2, mask)
            })
        }
    }
}

/// Reads a structure. `read` is given each field's number, and says whether it has read the field.
fn read_struct(
    input: &mut dyn TInputProtocol,
    mut read: impl FnMut(&mut dyn TInputProtocol, i16) -> thrift::Result<bool>,
) -> thrift::Result<()> {
    input.read_struct_begin()?;
    loop {
        let field = input.read_field_begin()?;
        if field.field_type == TType::Stop {
            return input.read_struct_end();
        }
        if !read(input, field.id.unwrap_or_default())? {
            input.skip(field.field_type)?;
        }
        input.read_field_end()?;
    }
}

/// A `DevMgrPortInfo`.
fn read_port(input: &mut dyn TInputProtocol) -> thrift::Result<Port> {
    let mut port = Port { number: 0, interface: String::new() };
    read_struct(input, |input, field| {
        match field {
            1 => port.number = input.read_i32()? as u16,
            2 => port.interface = input.read_string()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(port)
}

/// Reads an exception of bmv2's, which consists of a code.
fn read_code(input: &mut dyn TInputProtocol) -> thrift::Result<i32> {
    let mut code = 0;
    read_struct(input, |input, field| {
        let found = field == 1;
        if found {
            code = input.read_i32()?;
        }
        Ok(found)
    })?;
    Ok(code)
}

/// Ports as bmv2 takes them: a digit for each, the lowest one last.
fn port_map(ports: &[u16]) -> String {
    let highest = ports.iter().copied().max().unwrap_or_default();
    (0..=highest).rev().map(|port| if ports.contains(&port) { '1' } else { '0' }).collect()
}

/// The codes of `TableOperationErrorCode` that a program can cause; others are named by their
/// number.
fn explain(method: &str, code: i32) -> String {
    let reason = match (method.starts_with("bm_mt_"), code) {
        (true, 1) => "the table is full",
        (true, 2 | 3) => "it has no such entry",
        (true, 7) => "its program has no such table",
        (true, 8) => "the table has no such action",
        (true, 17) => "there is an entry with the same key",
        (true, 18) => "the key does not fit the table",
        (true, 26) => "the action takes other data",
        _ => return format!("it refused {method} (code {code})"),
    };
    reason.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_map_has_the_lowest_port_last() {
        assert_eq!(port_map(&[1, 3]), "1010");
        assert_eq!(port_map(&[0]), "1");
        assert_eq!(port_map(&[]), "0");
    }
}
