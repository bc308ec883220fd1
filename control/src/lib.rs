//! The control plane's gRPC messages, client and server stubs, generated from `proto/switchml.proto`.

#![forbid(unsafe_code)]

tonic::include_proto!("switchml.v1");
