//! Ranks that have no aggregator bring their own: each process adds up a part of every call
//! (section 36 of `docs/spec`).
//!
//! Such an aggregator is the daemon's own service and its software data plane, inside the process
//! ([`switchml_userspace::embedded`]). A process has one for all of its jobs (`lending`). It admits
//! only ranks that know its secret. Ranks exchange addresses and secrets through torch's store, or
//! they meet (`meeting`).
//!
//! The rest of the library treats it as any other aggregator. Only packets between a rank and the
//! aggregator of its own process take another way: the driver calls the data plane instead of a
//! socket, and finds results in a queue ([`switchml_data_plane::software::in_process`]).

mod lending;
mod peer;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use switchml_data_plane::software::in_process::InProcessRank;

use crate::control::{Access, Token};
use crate::error::Error;
use crate::files;
use crate::own_address::{own_address, resolve};
use lending::{Lending, Lent};
pub use peer::Peer;

/// An aggregator inside this process. Ranks that are handed the addresses of all ranks' own
/// ([`Builder::peers`](crate::Builder::peers)) need no other. It serves all jobs of the process;
/// only ranks of one job that are in the same process have one each.
///
/// It serves until it is dropped, which takes two seconds at most: other ranks may still lack
/// results.
#[derive(Debug)]
pub struct OwnAggregator(Lent);

impl OwnAggregator {
    /// The process's, for a rank of this job, at the address from which this host reaches
    /// `towards`: `host`, `host:port`, or an IP address, such as rank 0's.
    ///
    /// # Errors
    /// [`Error::Control`] if there is no such host, [`Error::NoPeer`] if the system refuses.
    pub fn start(towards: &str, job: &str) -> Result<Self, Error> {
        Self::at(own_address(towards, resolve(towards)?)?, job)
    }

    pub(crate) fn at(address: IpAddr, job: &str) -> Result<Self, Error> {
        let failed = |error: switchml_userspace::embedded::EmbedError| Error::NoPeer {
            why: files::explained_text(error.to_string()),
        };
        Lending::here().lend(address, job).map(Self).map_err(failed)
    }

    /// A rank of this process, known by the address of a socket that nobody else uses.
    pub(crate) fn rank_in_process(
        &self,
        address: SocketAddr,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> InProcessRank {
        self.0.embedded().rank_in_process(address, wake)
    }

    /// The job that it was started for.
    pub(crate) fn job(&self) -> &str {
        self.0.job()
    }

    /// Whether packets to it have tags.
    pub(crate) fn has_tags(&self) -> bool {
        self.0.embedded().has_tags()
    }

    /// Where the other ranks join, and with which secret.
    pub fn peer(&self) -> Peer {
        let embedded = self.0.embedded();
        Peer { address: embedded.control(), secret: Some(embedded.secret()) }
    }
}

/// Aggregators of a job on one host. There is no link to share, so one alone would leave all to
/// its thread.
const OF_ONE_HOST: usize = 4;

/// The aggregators of a job whose ranks bring their own.
pub(crate) struct Peers {
    /// This rank's, if it is one of them.
    pub own: Option<Arc<OwnAggregator>>,
    pub aggregators: Vec<Access>,
}

impl Peers {
    /// Rule 36.6: all ranks' aggregators, in the order of ranks. Of ranks with the same address,
    /// which are on the same host, the first one's counts; if all are, those of the first four.
    pub fn new(own: Arc<OwnAggregator>, all: &[Peer]) -> Self {
        let host = |peer: &Peer| peer.address.ip();
        let are_neighbours = all.iter().all(|other| host(other) == host(&all[0]));
        let counted = if are_neighbours { OF_ONE_HOST } else { 1 };
        let counts = |(rank, peer): &(usize, &Peer)| {
            let before = all[..*rank].iter().filter(|other| host(other) == host(peer));
            before.count() < counted
        };
        let access = |(rank, peer): (usize, &Peer)| Access {
            address: peer.address.to_string(),
            token: peer.secret.map(|secret| Token::Text(secret.to_string())),
            peer: Some(rank as u16),
            ..Access::default()
        };
        let aggregators: Vec<_> = all.iter().enumerate().filter(counts).map(access).collect();
        let address = own.peer().address.to_string();
        let is_used = aggregators.iter().any(|access| access.address == address);
        Self { own: is_used.then_some(own), aggregators }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_host_the_first_rank_has_the_aggregator() {
        let own = OwnAggregator::start("127.0.0.1", "hosts").unwrap();
        let mine = own.peer();
        let others = ["10.0.0.1:7", "10.0.0.2:7", "10.0.0.1:8", "10.0.0.2:9"];
        let mut all: Vec<Peer> = others.iter().map(|address| address.parse().unwrap()).collect();
        all.push(mine);
        let peers = Peers::new(Arc::new(own), &all);
        let told: Vec<_> = peers
            .aggregators
            .iter()
            .map(|access| (access.peer.unwrap(), access.address.clone()))
            .collect();
        let expected = [(0, all[0]), (1, all[1]), (4, mine)];
        assert_eq!(told, expected.map(|(rank, peer)| (rank, peer.address.to_string())));
        let secrets: Vec<_> =
            peers.aggregators.iter().map(|access| access.token.is_some()).collect();
        assert_eq!(secrets, [false, false, true]);
        assert!(peers.own.is_some());
    }

    #[test]
    fn on_one_host_the_first_four_ranks_have_aggregators() {
        let own: Vec<_> =
            [(); 5].map(|()| OwnAggregator::start("127.0.0.1", "one host").unwrap()).into();
        let all: Vec<_> = own.iter().map(OwnAggregator::peer).collect();
        for (rank, own) in own.into_iter().enumerate() {
            let peers = Peers::new(Arc::new(own), &all);
            let told: Vec<_> = peers.aggregators.iter().map(|access| access.peer).collect();
            assert_eq!(told, [Some(0), Some(1), Some(2), Some(3)]);
            assert_eq!(peers.own.is_some(), rank < 4);
        }
    }
}
