//! Queries about a host's network that need no privilege, but for [`refusal`]: the daemon uses them
//! for its ports, and `switchml-worker doctor` for the path to the aggregator.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`interfaces`] | interfaces, their addresses, what their drivers do in XDP |
//! | [`offloads`] | what interfaces do to frames before programs see them |
//! | [`routes`] | which way packets to an address go |
//! | [`neighbours`] | the MAC of a host on the same link, and the bridge's port that it is behind |
//! | [`dual`] | sockets that hear both kinds of IP |
//! | [`way`] | the interface by which frames of a host come in |
//! | [`refusal`] | why a driver refuses an XDP program |
//! | [`netlink`] | requests to the kernel |

#![forbid(unsafe_code)]

pub mod dual;
pub mod interfaces;
pub mod neighbours;
pub mod netlink;
pub mod offloads;
pub mod refusal;
pub mod routes;
pub mod way;
