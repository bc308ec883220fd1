//! Which job a rank is of: the job's name, which no other job has at its aggregators (rule 22.19 of
//! `docs/spec`), and where these are.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::builder::Builder;
use crate::control::Access;
use crate::error::Error;
use crate::meeting::{Attendant, Host, Met, Settings, draw_id};
use crate::own_address::{own_address, resolve};
use crate::peers::{OwnAggregator, Peer, Peers};

/// The job of a rank.
pub(crate) struct Identity {
    /// Its name.
    pub job: String,
    pub peers: Peers,
    /// Where its ranks have met, on the rank that listens there. It must live as long as the job.
    pub host: Option<Arc<Host>>,
}

impl Builder {
    /// Finds the job's name and its aggregators: those given, or those of the ranks. If neither
    /// tells the ranks of this job from those of others, they meet.
    ///
    /// # Errors
    /// Those of [`Attendant::meet`] and [`OwnAggregator::start`]; [`Error::Setting`] if the ranks
    /// have nothing to find each other by.
    pub(crate) fn identify(&self, me: (u16, u16)) -> Result<Identity, Error> {
        let aggregators = self.aggregators_given();
        if !aggregators.is_empty() {
            return self.at_aggregators(me, aggregators);
        }
        if let Some((own, all)) = &self.peers {
            // No other job has this name at that aggregator.
            let job = self.settings.job.clone().unwrap_or_else(|| own.job().to_owned());
            return Ok(Identity { job, peers: Peers::new(Arc::clone(own), all), host: None });
        }
        let place = self.place(me)?;
        let own = OwnAggregator::at(place.own.ip(), &place.at.to_string())?;
        let met = self.meet(me, &place, 0, Some(own.peer()))?;
        let peers = Peers::new(Arc::new(own), &met.peers);
        Ok(Identity { job: met.job, peers, host: met.host })
    }

    /// Meets the other ranks as a job without an aggregator does, for the doctor. The others are
    /// told what `open` opens at this rank's address.
    ///
    /// # Errors
    /// Those of [`Self::connect`] but for aggregators; those of `open`.
    #[doc(hidden)]
    pub fn meet_ranks(
        &self,
        open: impl FnOnce(IpAddr) -> Result<SocketAddr, Error>,
    ) -> Result<MetRanks, Error> {
        let (rank, ranks) = self.check()?;
        let me = (rank as u16, ranks as u16);
        let place = self.place(me)?;
        let own = open(place.own.ip())?;
        let Met { peers, host, .. } = self.meet(me, &place, 0, Some(own.into()))?;
        let addresses = peers.iter().map(|peer| peer.address).collect();
        Ok(MetRanks { rank: me.0, addresses, _host: host })
    }

    fn at_aggregators(&self, me: (u16, u16), aggregators: Vec<Access>) -> Result<Identity, Error> {
        let (job, host) = match (&self.settings.job, &self.unique_id) {
            (Some(job), _) => (job.clone(), None),
            (None, Some(id)) => (id.job(), None),
            (None, None) => {
                let met = self.meet(me, &self.place(me)?, aggregators.len(), None)?;
                (met.job, met.host)
            }
        };
        Ok(Identity { job, peers: Peers { own: None, aggregators }, host })
    }

    fn meet(
        &self,
        (rank, ranks): (u16, u16),
        place: &Place,
        aggregators: usize,
        peer: Option<Peer>,
    ) -> Result<Met, Error> {
        if ranks == 1 {
            let job =
                self.settings.job.clone().unwrap_or_else(|| format!("{}-{}", place.own, draw_id()));
            return Ok(Met { job, peers: peer.into_iter().collect(), host: None });
        }
        let settings = Settings {
            job: self.settings.job.clone(),
            aggregators,
            weights: self.settings.weights.clone().unwrap_or_default(),
            own_hosts: self.settings.own_hosts(),
        };
        let timeout = self.settings.join_timeout();
        let attendant = Attendant { rank, ranks, settings, peer, timeout };
        match &self.unique_id {
            Some(id) => attendant.meet_by(id),
            None => attendant.meet(place.at, place.own),
        }
    }

    /// Where the ranks meet.
    fn place(&self, (_, ranks): (u16, u16)) -> Result<Place, Error> {
        if let Some(id) = &self.unique_id {
            return Place::new(&id.place().to_string(), id.place());
        }
        match (&self.settings.meeting, ranks) {
            (Some(place), _) => Place::new(place, resolve(place)?),
            (None, 1) => {
                let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
                Ok(Place { at: here, own: here })
            }
            (None, _) if self.settings.aggregator.is_some() => Err(Error::Setting {
                name: "job",
                given: "not set".to_owned(),
                allowed: "give it a name that no other job has at this aggregator, or set \
                          SWITCHML_JOB; or set MASTER_ADDR and MASTER_PORT, where ranks meet",
            }),
            (None, _) => Err(Error::Setting {
                name: "aggregator",
                given: "not set".to_owned(),
                allowed: "give its host, or set SWITCHML_AGGREGATOR; or set MASTER_ADDR and \
                          MASTER_PORT, where ranks meet that serve each other",
            }),
        }
    }
}

/// Ranks that have met for the doctor.
#[doc(hidden)]
pub struct MetRanks {
    /// This rank.
    pub rank: u16,
    /// What the ranks have told the others, in their order.
    pub addresses: Vec<SocketAddr>,
    /// The place, on the rank that listens there.
    _host: Option<Arc<Host>>,
}

/// Where ranks meet.
struct Place {
    at: SocketAddr,
    /// The same port at the address from which this host reaches it.
    own: SocketAddr,
}

impl Place {
    fn new(given: &str, at: SocketAddr) -> Result<Self, Error> {
        Ok(Self { at, own: (own_address(given, at)?, at.port()).into() })
    }
}
