//! Ranks add their own hosts to aggregators that are slower than a ring (rule 36.15): a job with a
//! switch host whose one port is as fast as a rank's would otherwise take longer than without any.
//!
//! The ranks agree on it by calls of the job as it is. So all of them decide alike, and if one
//! cannot be reached by the others, as behind a firewall, the job stays as it is.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use switchml_control::{HOSTS_SUFFIX, MAX_NAME_LEN};
use switchml_worker_core::numerics::ReduceOp;
use switchml_worker_core::stripes;

use crate::builder::Builder;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::peers::{OwnAggregator, Peer, Peers};
use crate::warning::warn;

/// How long a host may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long joining may take, once all ranks have reached all hosts.
const JOINING: Duration = Duration::from_secs(10);
/// Numbers for a rank's aggregator: 4 of its IPv6 address, or of IPv4 mapped into it, the port, 0
/// if there is none, and 4 of its secret.
const WORDS: usize = 9;

/// Why a rank stays with the aggregators given; `None` if it is because another rank does, or the
/// rank has RDMA or a public address.
type Refusal = Option<Error>;

impl Builder {
    /// Adds the ranks' hosts to the job's aggregators if these are slower than a ring, and all
    /// ranks reach all hosts. Otherwise returns the communicator as it is.
    ///
    /// # Errors
    /// Those of calls.
    pub(crate) fn with_own_hosts(self, alone: Communicator) -> Result<Communicator, Error> {
        let stripes = &alone.info().stripes;
        let links: Vec<_> = stripes.iter().map(|stripe| stripe.links).collect();
        let has_tags = stripes.iter().any(|stripe| stripe.tag_len > 0);
        if has_tags || !self.may_add_hosts() || !stripes::are_slower_than_a_ring(&links) {
            return Ok(alone);
        }
        // Ranks' own aggregators have sockets alone.
        let own = match self.settings.rdma() {
            true => Err(None),
            false => {
                OwnAggregator::start(&stripes[0].control, &name(&alone.info().job)).map_err(Some)
            }
        };
        // Rule 36.20: one with tags helps no other.
        let own = own.and_then(|own| if own.has_tags() { Err(None) } else { Ok(own) });
        let all = exchange(&alone, own.as_ref().ok().map(OwnAggregator::peer))?;
        let reached = own.and_then(|own| Ok((own, reach(&all)?)));
        let (own, all) = match agree(&alone, reached)? {
            Ok(reached) => reached,
            Err(refusal) => return Ok(stay(alone, refusal)),
        };
        let together = self.join(&alone, own, &all).map_err(Some);
        match agree(&alone, together)? {
            Err(refusal) => Ok(stay(alone, refusal)),
            Ok(together) => {
                if alone.rank() == 0 {
                    let what = ": the aggregator alone is slower than a ring; ranks' hosts help it";
                    warn(&alone.info().job, 0, what);
                }
                alone.close()?;
                Ok(together)
            }
        }
    }

    /// Joins a job at the aggregators given and at those of the ranks' hosts.
    fn join(
        &self,
        alone: &Communicator,
        own: OwnAggregator,
        all: &[Peer],
    ) -> Result<Communicator, Error> {
        let mut peers = Peers::new(Arc::new(own), all);
        // Hosts that have an aggregator need no second one.
        let given = &alone.info().stripes;
        let has_one = |address: SocketAddr| {
            given.iter().any(|stripe| stripe.aggregator.ip().to_canonical() == address.ip())
        };
        peers.aggregators.retain(|access| !access.address.parse().is_ok_and(has_one));
        peers.aggregators.extend(self.aggregators_given());
        let timeout = self.settings.join_timeout().min(JOINING);
        let (builder, job) = (self.clone().join_timeout(timeout), name(&alone.info().job));
        builder.connect_to(&job, (alone.rank(), alone.world_size()), peers)
    }
}

/// The job goes on without help.
fn stay(alone: Communicator, refusal: Refusal) -> Communicator {
    if let Some(error) = refusal {
        let what = format!(
            ": the aggregator alone is slower than a ring, and ranks' hosts cannot help it: \
             {error}"
        );
        warn(&alone.info().job, alone.rank(), what);
    }
    alone
}

/// The name under which the job goes on: to the aggregators, it is another job.
fn name(job: &str) -> String {
    let end = job.floor_char_boundary(MAX_NAME_LEN - HOSTS_SUFFIX.len());
    job[..end].to_owned() + HOSTS_SUFFIX
}

/// Tells all ranks this rank's aggregator, if it has one. Returns those of all, in their order.
fn exchange(alone: &Communicator, own: Option<Peer>) -> Result<Vec<Option<Peer>>, Error> {
    let mut words = vec![0i32; WORDS * alone.world_size() as usize];
    if let Some(own) = own {
        let place = WORDS * alone.rank() as usize;
        words[place..place + WORDS].copy_from_slice(&to_words(own));
    }
    alone.all_reduce(&mut words, ReduceOp::Sum)?;
    Ok(words.as_chunks().0.iter().map(from_words).collect())
}

fn to_words(peer: Peer) -> [i32; WORDS] {
    let ip = match peer.address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let ip = ip.to_bits();
    let word = |shift: u32| (ip >> shift) as i32;
    let secret = peer.secret.map_or([0; 4], <[i32; 4]>::from);
    let [a, b, c, d] = secret;
    [word(96), word(64), word(32), word(0), peer.address.port().into(), a, b, c, d]
}

fn from_words(words: &[i32; WORDS]) -> Option<Peer> {
    let [ip @ .., port, a, b, c, d] = *words;
    let bits = ip.iter().fold(0, |bits: u128, word| bits << 32 | u128::from(*word as u32));
    let address = SocketAddr::new(Ipv6Addr::from_bits(bits).to_canonical(), port as u16);
    (port != 0).then_some(Peer { address, secret: Some([a, b, c, d].into()) })
}

/// Whether this rank reaches the hosts of all ranks. Returns their addresses.
fn reach(all: &[Option<Peer>]) -> Result<Vec<Peer>, Refusal> {
    // The rank that has none says why.
    let all: Vec<_> = all.iter().copied().collect::<Option<_>>().ok_or(None)?;
    let knock = |(rank, Peer { address, .. }): (usize, Peer)| match TcpStream::connect_timeout(
        &address, PATIENCE,
    ) {
        Ok(_) => Ok(()),
        Err(error) => Err(Some(Error::NoPeer { why: format!("rank {rank} ({address}): {error}") })),
    };
    thread::scope(|scope| {
        let start = |place| thread::Builder::new().spawn_scoped(scope, move || knock(place));
        let knocks: Vec<_> = (0..).zip(all.iter().copied()).map(start).collect();
        let refused = |error| Err(Some(Error::system("cannot start a thread")(error)));
        let answers = knocks.into_iter().map(|knock| match knock {
            Ok(knock) => knock.join().unwrap_or(Err(None)),
            Err(error) => refused(error),
        });
        answers.collect::<Result<(), _>>()
    })?;
    Ok(all)
}

/// Whether all ranks have what they need.
fn agree<T>(alone: &Communicator, own: Result<T, Refusal>) -> Result<Result<T, Refusal>, Error> {
    let mut refusals = [i32::from(own.is_err())];
    alone.all_reduce(&mut refusals, ReduceOp::Sum)?;
    Ok(own.and_then(|own| if refusals == [0] { Ok(own) } else { Err(None) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_kinds() {
        for text in ["10.0.0.1:29500", "[fd00::1:2]:65535", "255.255.255.255:1"] {
            let peer: Peer = format!("{text}/fedcba98765432100123456789abcdef").parse().unwrap();
            assert_eq!(from_words(&to_words(peer)), Some(peer));
        }
        assert_eq!(from_words(&[0; WORDS]), None);
    }

    #[test]
    fn names_that_are_long() {
        assert_eq!(name("train"), "train and hosts");
        assert_eq!(name(&"ä".repeat(100)), "ä".repeat(95) + HOSTS_SUFFIX);
        assert_eq!(name(&"x".repeat(200)).len(), 200);
    }
}
