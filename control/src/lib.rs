//! The control plane's gRPC messages, client and server stubs, generated from `proto/switchml.proto`; and how both
//! sides call ranks in messages for people.

#![forbid(unsafe_code)]

mod words;

pub use words::rank_list;

tonic::include_proto!("switchml.v1");
