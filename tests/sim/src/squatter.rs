//! A stranger that takes a rank's seat wherever the rank's job might move to, as far as that
//! follows from what aggregators tell everybody: the numbers in their assignments.

use std::collections::BTreeMap;

use switchml_control::{JoinRequest, join_event, moved_name};
use switchml_protocol::VERSION;

use crate::net::{Connection, Message, Net, News, Place};
use crate::scenario::Scenario;

/// The name of its own jobs, which tell it the aggregators' numbers.
const OWN_JOB: &str = "a stranger's";

/// See the module.
#[derive(Default)]
pub struct Squatter {
    /// What it wants of each of its connections.
    wishes: BTreeMap<Connection, JoinRequest>,
    /// The seat that it wants: rank, and number of ranks.
    seat: (u32, u32),
    aggregators: usize,
}

impl Squatter {
    /// Begins with a job of its own at each aggregator.
    pub fn begin(&mut self, net: &mut Net, scenario: &Scenario, rank: u16) {
        self.seat = (rank.into(), scenario.jobs[0].ranks.into());
        self.aggregators = scenario.aggregators();
        for aggregator in 0..self.aggregators {
            self.join(net, aggregator, OWN_JOB, (0, 1));
        }
    }

    fn join(&mut self, net: &mut Net, aggregator: usize, job: &str, (rank, ranks): (u32, u32)) {
        let request = JoinRequest {
            job_name: job.to_owned(),
            rank,
            world_size: ranks,
            data_threads: 1,
            aggregators: 1,
            protocol_version: VERSION.into(),
            ..JoinRequest::default()
        };
        self.wishes.insert(net.connect(Place::Stranger, aggregator), request);
    }

    /// Takes the seat of a job at all other aggregators, once it knows the number of one.
    pub fn hear(&mut self, net: &mut Net, connection: Connection, news: News) {
        match news {
            News::Connected => {
                if let Some(request) = self.wishes.get(&connection) {
                    net.ask(connection, Message::Join(request.clone()));
                }
            }
            News::Event(join_event::Event::Assigned(assigned))
                if self.wishes.remove(&connection).is_some_and(|wish| wish.job_name == OWN_JOB) =>
            {
                net.ask(connection, Message::Gone);
                let name = moved_name("job 0", assigned.aggregator);
                for aggregator in 0..self.aggregators {
                    self.join(net, aggregator, &name, self.seat);
                }
            }
            _ => {}
        }
    }
}
