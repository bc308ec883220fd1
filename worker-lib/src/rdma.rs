//! What a rank by RDMA needs, and whether it is there: for ranks, and for who examines their hosts.

use std::sync::Arc;

use switchml_protocol::capabilities::Capabilities;
use switchml_worker_core::engine::Identity;

use crate::control::Assigned;
use crate::error::Error;
use crate::open_path::open_path;
use crate::transport::{self, Medium};
use crate::waker::Waker;

pub use crate::transport::rdma::{DevicePort, Mtu, Unusable};

/// Whether the data plane takes RDMA (rule 37.1).
///
/// # Errors
/// [`Unusable::NotTaken`] if it does not.
pub fn check_taken(assigned: &Assigned) -> Result<(), Unusable> {
    match assigned.capabilities.contains(Capabilities::ROCE) {
        true => Ok(()),
        false => Err(Unusable::NotTaken(assigned.data_address)),
    }
}

/// Says HELLO by RDMA as the only rank of a job that it has joined. Returns whether one came back.
///
/// # Errors
/// Those of opening a queue pair, and of the device.
pub fn is_answered(assigned: &Assigned) -> Result<bool, Error> {
    let &Assigned { job, epoch, keys, data_address, hello_secret, max_lanes, .. } = assigned;
    let waker = Waker::new(&Arc::default());
    let opened = transport::open(data_address, None, waker, Medium::Rdma);
    let mut transport = opened.map_err(Error::system("cannot open a queue pair"))?;
    let identity = Identity { job, epoch, rank: 0, ranks: 1, keys };
    match open_path(transport.as_mut(), &identity, hello_secret, max_lanes, false) {
        Ok(_) | Err(Error::PathMtu { .. }) => Ok(true),
        Err(Error::DataPathClosed { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
