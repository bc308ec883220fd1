//! Why the switch has refused, in one line.

use std::iter::from_fn;

use prost::Message;
use rbfrt::error::RBFRTError;

/// The relevant part of `google.rpc.Status`: for a batch it has the result of each part.
#[derive(Clone, PartialEq, Message)]
struct Batch {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `bfrt_proto.Error`.
#[derive(Clone, PartialEq, Message)]
struct Part {
    #[prost(int32, tag = "1")]
    canonical_code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// The reason if there is no connection to the switch.
const UNREACHABLE: &str = "it cannot be reached";

/// The error in words.
pub fn in_words(error: &RBFRTError) -> String {
    let words = match error {
        RBFRTError::ConnectionError { .. } => UNREACHABLE.to_owned(),
        RBFRTError::GRPCError { message, details } if is_lost(message) || is_lost(details) => {
            UNREACHABLE.to_owned()
        }
        RBFRTError::GRPCError { message, details } => match parts(details) {
            parts if parts.is_empty() => {
                quoted(message, "message: \"").unwrap_or_else(|| message.clone())
            }
            parts => parts.join("; "),
        },
        RBFRTError::GenericError { message } => message.clone(),
        RBFRTError::GetForwardingPipelineError { orig_e, .. } => {
            let status = orig_e.to_string();
            if is_lost(&status) { UNREACHABLE.to_owned() } else { status }
        }
        error => error.to_string(),
    };
    words.replace('\n', " ")
}

/// Whether a printed status belongs to a call that found no connection, or lost it. Some calls of
/// the library print it for people, others for debugging.
fn is_lost(status: &str) -> bool {
    [
        "code: Unavailable",
        "code: 'The service is currently unavailable'",
        "ConnectError",
        "operation was canceled",
        "transport error",
    ]
    .iter()
    .any(|of| status.contains(of))
}

/// The failed parts of a batch. The library returns the gRPC status in debug format, so its bytes
/// have to be parsed back.
fn parts(details: &str) -> Vec<String> {
    let bytes = quoted_bytes(details, "details: b\"").unwrap_or_default();
    let Ok(batch) = Batch::decode(&*bytes) else { return Vec::new() };
    let parts = batch.details.iter().filter_map(|any| Part::decode(&*any.value).ok());
    let mut failed: Vec<_> =
        parts.filter(|part| part.canonical_code != 0).map(|part| part.message).collect();
    failed.dedup();
    failed
}

/// The string that begins after `begin`.
fn quoted(text: &str, begin: &str) -> Option<String> {
    String::from_utf8(quoted_bytes(text, begin)?).ok()
}

/// The bytes of the string that begins after `begin`.
fn quoted_bytes(text: &str, begin: &str) -> Option<Vec<u8>> {
    let mut rest = text[text.find(begin)? + begin.len()..].bytes();
    let byte = || match rest.next()? {
        b'"' => None,
        b'\\' => match rest.next()? {
            b'x' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()
            }
            b'n' => Some(b'\n'),
            b'r' => Some(b'\r'),
            b't' => Some(b'\t'),
            b'0' => Some(0),
            escaped => Some(escaped),
        },
        plain => Some(plain),
    };
    Some(from_fn(byte).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::{Code, Status};

    #[test]
    fn of_a_batch_the_parts_that_failed_are_told() {
        let part = |canonical_code, message: &str| {
            let value = Part { canonical_code, message: message.to_owned() }.encode_to_vec();
            Any { value }
        };
        // A string with a length byte that is a letter, and with escaped characters.
        let long = format!("table:x \"{}\" \\ no space", "y".repeat(60));
        let batch = Batch { details: vec![part(0, ""), part(8, &long), part(6, "exists")] };
        let status =
            Status::with_details(Code::Unknown, "Write Error Status", batch.encode_to_vec().into());
        assert_eq!(in_words(&RBFRTError::from(status)), format!("{long}; exists"));
    }

    #[test]
    fn a_switch_that_goes_is_said_to_be_out_of_reach() {
        for status in [
            Status::unavailable("closed"),
            Status::unknown("operation was canceled"),
            Status::unknown("transport error"),
        ] {
            let printed =
                RBFRTError::GRPCError { message: status.to_string(), details: String::new() };
            assert_eq!(in_words(&printed), UNREACHABLE);
            assert_eq!(in_words(&RBFRTError::from(status)), UNREACHABLE);
        }
    }

    #[test]
    fn of_a_single_call_its_message_is_told() {
        let status = Status::not_found("no program \"x\"");
        assert_eq!(in_words(&RBFRTError::from(status.clone())), "no program \"x\"");
        let printed = RBFRTError::GRPCError { message: status.to_string(), details: String::new() };
        assert_eq!(in_words(&printed), "no program \"x\"");
    }
}
