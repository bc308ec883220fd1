//! Calls of `simple_switch`'s control interface: Thrift, with the services, methods and field
//! numbers of bmv2's `standard.thrift` and `simple_pre_lag.thrift`. Only the calls that are needed,
//! written by hand: generating them would need the Thrift compiler at build time.

use std::io::{BufReader, BufWriter};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

use crate::switch;
use serde::Deserialize;
use thrift::protocol::{
    TBinaryInputProtocol, TBinaryOutputProtocol, TFieldIdentifier, TInputProtocol, TListIdentifier,
    TMessageIdentifier, TMessageType, TMultiplexedOutputProtocol, TOutputProtocol,
    TStructIdentifier, TType,
};

/// Longest time of a call to `simple_switch`. Most take less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);
/// The only context of `simple_switch`, the first argument of calls about it.
const CONTEXT: Value = Value::I32(0);

/// Why a call had no result.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum CallError {
    #[error("{0}")]
    Connection(#[from] thrift::Error),
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
        self.ask("bm_get_config", &[], Value::text)
    }

    /// The socket of the notifications; empty if `simple_switch` was built without them.
    pub fn notifications(&mut self) -> Result<String, CallError> {
        let socket = |info: &Value| Some(info.field(3).and_then(Value::text).unwrap_or_default());
        self.ask("bm_mgmt_get_info", &[], socket)
    }

    /// The switch's ports.
    pub fn ports(&mut self) -> Result<Vec<Port>, CallError> {
        self.ask("bm_dev_mgr_show_ports", &[], |ports| {
            let Value::List(ports) = ports else { return None };
            ports.iter().map(port_of).collect()
        })
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
        let key = Value::List(key.iter().map(match_param).collect());
        let options = Value::Struct(vec![(1, priority.into())]);
        let entry = [CONTEXT, table.into(), key, action.into(), data.into(), options];
        self.ask("bm_mt_add_entry", &entry, Value::i32)
    }

    /// Gives an entry another action.
    pub fn modify_entry(
        &mut self,
        table: &str,
        handle: i32,
        action: &str,
        data: &[Vec<u8>],
    ) -> Result<(), CallError> {
        let entry = [CONTEXT, table.into(), handle.into(), action.into(), data.into()];
        self.tell("bm_mt_modify_entry", &entry)
    }

    /// Removes an entry.
    pub fn delete_entry(&mut self, table: &str, handle: i32) -> Result<(), CallError> {
        self.tell("bm_mt_delete_entry", &[CONTEXT, table.into(), handle.into()])
    }

    /// Removes all entries of a table, and gives it back the default action that the program says.
    pub fn clear_table(&mut self, table: &str) -> Result<(), CallError> {
        self.tell("bm_mt_clear_entries", &[CONTEXT, table.into(), Value::Bool(true)])
    }

    /// Sets a table's action for packets that match no entry.
    pub fn set_default_action(
        &mut self,
        table: &str,
        action: &str,
        data: &[Vec<u8>],
    ) -> Result<(), CallError> {
        let entry = [CONTEXT, table.into(), action.into(), data.into()];
        self.tell("bm_mt_set_default_action", &entry)
    }

    /// Gives a table back the default action that the program says.
    pub fn reset_default_action(&mut self, table: &str) -> Result<(), CallError> {
        self.tell("bm_mt_reset_default_entry", &[CONTEXT, table.into()])
    }

    /// Writes the same value to entries of a register.
    pub fn write_registers(
        &mut self,
        register: &str,
        entries: Range<u32>,
        value: u32,
    ) -> Result<(), CallError> {
        let [start, end] = [entries.start, entries.end].map(|index| Value::I32(index as i32));
        let value = Value::I64(value.into());
        self.tell("bm_register_write_range", &[CONTEXT, register.into(), start, end, value])
    }

    /// An entry of a register.
    pub fn read_register(&mut self, register: &str, index: u32) -> Result<u32, CallError> {
        let entry = [CONTEXT, register.into(), Value::I32(index as i32)];
        Ok(self.ask("bm_register_read", &entry, Value::i64)? as u32)
    }

    /// Packets that a counter has counted.
    pub fn packets(&mut self, counter: &str, index: u32) -> Result<u64, CallError> {
        let entry = [CONTEXT, counter.into(), Value::I32(index as i32)];
        let packets = |counted: &Value| counted.field(2)?.i64();
        Ok(self.ask("bm_counter_read", &entry, packets)? as u64)
    }

    /// Sets all of a counter's entries to zero.
    pub fn clear_counter(&mut self, counter: &str) -> Result<(), CallError> {
        self.tell("bm_counter_reset_all", &[CONTEXT, counter.into()])
    }

    /// Sets the number of samples in a message of digests.
    pub fn set_digest_size(&mut self, list: i32, samples: i32) -> Result<(), CallError> {
        self.tell("bm_learning_set_buffer_size", &[CONTEXT, list.into(), samples.into()])
    }

    /// Acknowledges a digest; until then `simple_switch` does not report the same sample again.
    pub fn acknowledge_digest(&mut self, list: i32, buffer: i64) -> Result<(), CallError> {
        self.tell("bm_learning_ack_buffer", &[CONTEXT, list.into(), Value::I64(buffer)])
    }

    /// Makes a multicast group. Its handle is its number.
    pub fn create_group(&mut self, group: u16) -> Result<(), CallError> {
        self.ask("bm_mc_mgrp_create", &[CONTEXT, Value::I32(group.into())], Value::i32).map(drop)
    }

    /// Makes a node of a group, of these ports, and returns its handle.
    pub fn create_node(&mut self, node: switch::Node, ports: &[u16]) -> Result<i32, CallError> {
        let number = Value::I32(node.number.into());
        let made = [CONTEXT, number, port_map(ports).as_str().into(), "".into()];
        let handle = self.ask("bm_mc_node_create", &made, Value::i32)?;
        let group = Value::I32(node.group.into());
        self.tell("bm_mc_node_associate", &[CONTEXT, group, handle.into()])?;
        Ok(handle)
    }

    /// Gives a node other ports.
    pub fn update_node(&mut self, node: i32, ports: &[u16]) -> Result<(), CallError> {
        let node = [CONTEXT, node.into(), port_map(ports).as_str().into(), "".into()];
        self.tell("bm_mc_node_update", &node)
    }

    /// Removes a node.
    pub fn destroy_node(&mut self, node: i32) -> Result<(), CallError> {
        self.tell("bm_mc_node_destroy", &[CONTEXT, node.into()])
    }

    /// Removes a group without nodes.
    pub fn destroy_group(&mut self, group: u16) -> Result<(), CallError> {
        self.tell("bm_mc_mgrp_destroy", &[CONTEXT, Value::I32(group.into())])
    }

    /// Removes all multicast groups.
    pub fn clear_groups(&mut self) -> Result<(), CallError> {
        let text = self.ask("bm_mc_get_entries", &[CONTEXT], Value::text)?;
        let found: Multicast = serde_json::from_str(&text).map_err(|error| {
            CallError::Refused(format!("its multicast groups cannot be read: {error}"))
        })?;
        // Nodes first: `simple_switch` does not expect a node without its group.
        for node in found.l1_handles {
            self.tell("bm_mc_node_destroy", &[CONTEXT, node.handle.into()])?;
        }
        for group in found.mgrps {
            self.tell("bm_mc_mgrp_destroy", &[CONTEXT, group.id.into()])?;
        }
        Ok(())
    }

    /// A call without a result.
    fn tell(&mut self, method: &str, arguments: &[Value]) -> Result<(), CallError> {
        self.exchange(method, arguments).map(drop)
    }

    /// A call with a result.
    fn ask<T>(
        &mut self,
        method: &str,
        arguments: &[Value],
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, CallError> {
        let answer = self.exchange(method, arguments)?;
        let result = answer.field(0).and_then(read);
        result.ok_or_else(|| CallError::Refused(format!("it answered {method} without a result")))
    }

    /// The answer to a call: a structure that has the result as its field 0.
    fn exchange(&mut self, method: &str, arguments: &[Value]) -> Result<Value, CallError> {
        self.calls = self.calls.wrapping_add(1);
        let service = if method.starts_with("bm_mc_") { "simple_pre_lag" } else { "standard" };
        let mut output = TMultiplexedOutputProtocol::new(
            service,
            TBinaryOutputProtocol::new(BufWriter::new(&self.stream), true),
        );
        output.write_message_begin(&TMessageIdentifier::new(
            method,
            TMessageType::Call,
            self.calls,
        ))?;
        Value::Struct((1..).zip(arguments.iter().cloned()).collect()).write(&mut output)?;
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
        let answer = Value::read(TType::Struct, input)?;
        input.read_message_end()?;
        match &answer {
            Value::Struct(fields)
                if let Some((_, exception)) = fields.iter().find(|f| f.0 != 0) =>
            {
                let code = exception.field(1).and_then(Value::i32).unwrap_or_default();
                Err(CallError::Refused(explain(method, code)))
            }
            _ => Ok(answer),
        }
    }
}

/// A value as Thrift writes it.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Bool(bool),
    I32(i32),
    I64(i64),
    /// A text, or other bytes.
    Bytes(Vec<u8>),
    /// Values of one type; bytes, if there are none.
    List(Vec<Self>),
    /// Fields with their numbers.
    Struct(Vec<(i16, Self)>),
    /// A value of a type that no call here needs.
    Other,
}

impl From<i32> for Value {
    fn from(value: i32) -> Self {
        Self::I32(value)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Bytes(text.into())
    }
}

impl From<&[Vec<u8>]> for Value {
    fn from(values: &[Vec<u8>]) -> Self {
        Self::List(values.iter().cloned().map(Self::Bytes).collect())
    }
}

impl Value {
    fn i32(&self) -> Option<i32> {
        if let Self::I32(value) = self { Some(*value) } else { None }
    }

    fn i64(&self) -> Option<i64> {
        if let Self::I64(value) = self { Some(*value) } else { None }
    }

    fn text(&self) -> Option<String> {
        if let Self::Bytes(bytes) = self { String::from_utf8(bytes.clone()).ok() } else { None }
    }

    /// A field of a structure.
    fn field(&self, number: i16) -> Option<&Self> {
        let Self::Struct(fields) = self else { return None };
        fields.iter().find(|(n, _)| *n == number).map(|(_, value)| value)
    }

    fn kind(&self) -> TType {
        match self {
            Self::Bool(_) => TType::Bool,
            Self::I32(_) => TType::I32,
            Self::I64(_) => TType::I64,
            Self::Bytes(_) => TType::String,
            Self::List(_) => TType::List,
            Self::Struct(_) => TType::Struct,
            Self::Other => TType::Void,
        }
    }

    fn write(&self, out: &mut dyn TOutputProtocol) -> thrift::Result<()> {
        match self {
            Self::Bool(value) => out.write_bool(*value),
            Self::I32(value) => out.write_i32(*value),
            Self::I64(value) => out.write_i64(*value),
            Self::Bytes(value) => out.write_bytes(value),
            Self::List(values) => {
                let kind = values.first().map_or(TType::String, Self::kind);
                out.write_list_begin(&TListIdentifier::new(kind, values.len() as i32))?;
                values.iter().try_for_each(|value| value.write(out))?;
                out.write_list_end()
            }
            Self::Struct(fields) => {
                out.write_struct_begin(&TStructIdentifier::new(""))?;
                for (number, value) in fields {
                    out.write_field_begin(&TFieldIdentifier::new("", value.kind(), *number))?;
                    value.write(out)?;
                    out.write_field_end()?;
                }
                out.write_field_stop()?;
                out.write_struct_end()
            }
            Self::Other => Ok(()),
        }
    }

    fn read(kind: TType, input: &mut dyn TInputProtocol) -> thrift::Result<Self> {
        Ok(match kind {
            TType::Bool => Self::Bool(input.read_bool()?),
            TType::I32 => Self::I32(input.read_i32()?),
            TType::I64 => Self::I64(input.read_i64()?),
            TType::String => Self::Bytes(input.read_bytes()?),
            TType::List => {
                let list = input.read_list_begin()?;
                let values = (0..list.size).map(|_| Self::read(list.element_type, input));
                let values = values.collect::<thrift::Result<_>>()?;
                input.read_list_end()?;
                Self::List(values)
            }
            TType::Struct => {
                input.read_struct_begin()?;
                let mut fields = Vec::new();
                loop {
                    let field = input.read_field_begin()?;
                    if field.field_type == TType::Stop {
                        break;
                    }
                    let value = Self::read(field.field_type, input)?;
                    fields.push((field.id.unwrap_or_default(), value));
                    input.read_field_end()?;
                }
                input.read_struct_end()?;
                Self::Struct(fields)
            }
            other => {
                input.skip(other)?;
                Self::Other
            }
        })
    }
}

/// A `BmMatchParam`.
fn match_param(part: &Match) -> Value {
    let (kind, field, parts) = match part {
        Match::Exact(value) => (0, 2, vec![value]),
        Match::Ternary { value, mask } => (2, 4, vec![value, mask]),
    };
    let parts = parts.into_iter().cloned().map(Value::Bytes);
    Value::Struct(vec![(1, kind.into()), (field, Value::Struct((1..).zip(parts).collect()))])
}

/// A `DevMgrPortInfo`.
fn port_of(info: &Value) -> Option<Port> {
    Some(Port { number: info.field(1)?.i32()? as u16, interface: info.field(2)?.text()? })
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

    /// Thrift's binary protocol: a field is its type, its number and its value; type 0 ends them.
    #[test]
    fn values_are_written_and_read_as_thrift_has_them() {
        let list = Value::from(&[vec![9]][..]);
        let fields = [Value::I32(7), Value::I64(-1), "t".into(), list, Value::Bool(true)];
        let value = Value::Struct((1..).zip(fields).collect());
        let bytes = [
            &[8, 0, 1, 0, 0, 0, 7][..],
            &[10, 0, 2, 255, 255, 255, 255, 255, 255, 255, 255],
            &[11, 0, 3, 0, 0, 0, 1, b't'],
            &[15, 0, 4, 11, 0, 0, 0, 1, 0, 0, 0, 1, 9],
            &[2, 0, 5, 1, 0],
        ]
        .concat();
        let mut written = Vec::new();
        value.write(&mut TBinaryOutputProtocol::new(&mut written, true)).unwrap();
        assert_eq!(written, bytes);
        let mut input = TBinaryInputProtocol::new(&bytes[..], true);
        assert_eq!(Value::read(TType::Struct, &mut input).unwrap(), value);
    }
}
