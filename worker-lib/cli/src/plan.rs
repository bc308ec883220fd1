//! `switchml-worker plan`: what a set of machines can do, by the theory of
//! docs/research/scaling.md.

use std::fmt;
use std::fmt::Write as _;

use std::time::Duration;

use switchml_cli::size;
use switchml_step::{buckets, timeline};
use switchml_worker::{DType, Precision, ReduceOp, Reduction, numerics::Codec};
use switchml_worker_core::cost::{self, Framing};

use super::step::{Chosen, StepOptions};
use super::{Failure, say};

/// Headings of `--help`; options that most users need stand above them.
const NETWORK: &str = "Network";

/// How much less time another way must take to be worth its daemons.
const WORTH: f64 = 0.95;

/// Computes how long an all-reduce of f32, or a training step, takes with aggregators on these or
/// those machines, compared with a ring, and says what to start. Nothing is sent
#[derive(clap::Args, Clone)]
#[command(after_help = super::after_help("plan"))]
pub struct Plan {
    /// Number of ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1024))]
    ranks: u32,
    /// Bits per second of the link of a rank's host, each way, such as 1G
    #[arg(long, value_parser = size::rate)]
    rate: u64,
    /// Machines without ranks on which an aggregator can run
    #[arg(long, value_name = "N", default_value = "0")]
    spare: u16,
    /// Bits per second of the link of each of these [default: as --rate]
    #[arg(long, value_name = "RATE", value_parser = size::rate)]
    spare_rate: Option<u64>,
    /// Size of the tensor
    #[arg(
        long, default_value = "16M", value_parser = size::parse,
        conflicts_with_all = ["model", "trace"]
    )]
    size: usize,
    #[command(flatten)]
    step: StepOptions,
    /// The step that the options choose.
    #[arg(skip)]
    chosen: Option<Chosen>,
    /// Ranks on each host, which add up before they send
    #[arg(
        long, help_heading = NETWORK, value_name = "N", default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    ranks_per_host: u32,
    /// Largest IP packet of the network, in bytes
    #[arg(
        long, help_heading = NETWORK, value_name = "BYTES", default_value = "1500",
        value_parser = clap::value_parser!(u16).range(576..)
    )]
    mtu: u16,
}

/// Where aggregators run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Ring,
    RanksHosts,
    Spare,
    Both,
}

/// An element's bits as they travel, and the heading of their column.
const COLUMNS: [(Precision, &str); 3] =
    [(Precision::Exact, "exact"), (Precision::Bits16, "16 bits"), (Precision::Bits8, "8 bits")];

impl Plan {
    /// Prints the table, and a line of advice.
    pub fn run(&self) -> Result<(), Failure> {
        let Self { ranks, ranks_per_host, size, .. } = *self;
        if self.hosts() < 2 {
            return Err(Failure::Usage(format!(
                "--ranks {ranks} with --ranks-per-host {ranks_per_host} fit on one host, so \
                 nothing crosses the network; raise --ranks, or lower --ranks-per-host"
            )));
        }
        if size < DType::F32.size() {
            return Err(Failure::Usage(format!(
                "--size {size} is too small: one f32 takes 4 bytes; give that or more"
            )));
        }
        say(Self { chosen: self.step.load()?, ..self.clone() });
        Ok(())
    }

    fn hosts(&self) -> u32 {
        self.ranks.div_ceil(self.ranks_per_host)
    }

    fn spare_rate(&self) -> u64 {
        self.spare_rate.unwrap_or(self.rate)
    }

    /// The ways that these machines allow.
    fn ways(&self) -> impl Iterator<Item = Way> {
        let ways = [Way::Ring, Way::RanksHosts, Way::Spare, Way::Both];
        ways.into_iter().filter(|way| self.spare > 0 || !matches!(way, Way::Spare | Way::Both))
    }

    /// The time in the units of [`cost`].
    fn units(&self, way: Way) -> f64 {
        let hosts = self.hosts();
        let spare = f64::from(self.spare) * self.spare_rate() as f64 / self.rate as f64;
        match way {
            // Ranks of a host are neighbours in a ring, so that it leaves each host once.
            Way::Ring => cost::ring(self.ranks),
            Way::RanksHosts => cost::aggregated(hosts, hosts, 0.0),
            Way::Spare => cost::aggregated(hosts, 0, spare),
            Way::Both => cost::aggregated(hosts, hosts, spare),
        }
    }

    /// Milliseconds of the sum, or of the step; none if there is no such sum.
    fn milliseconds(&self, way: Way, precision: Precision) -> Option<f64> {
        let Some(Chosen { step, .. }) = &self.chosen else {
            return self.sum(way, precision, self.size);
        };
        let buckets = buckets::of(step, DType::F32.size());
        let sum = |elements| self.sum(way, precision, elements * DType::F32.size());
        sum(buckets.first()?.elements)?;
        let cost = |elements| Duration::from_secs_f64(sum(elements).unwrap_or_default() / 1e3);
        Some(1e3 * timeline::step(&buckets, step.compute(), cost).as_secs_f64())
    }

    /// Milliseconds of one sum of so many bytes; none if there is no such sum.
    fn sum(&self, way: Way, precision: Precision, size: usize) -> Option<f64> {
        let mtu = self.mtu.into();
        let (bytes, framing) = match (way, precision) {
            (Way::Ring, Precision::Exact) => (size as f64, Framing::Tcp { mtu }),
            (Way::Ring, Precision::Bits16) => (size as f64 / 2.0, Framing::Tcp { mtu }),
            (Way::Ring, Precision::Bits8) => return None,
            _ => {
                let sum = Reduction::new(ReduceOp::Sum, precision);
                let (ranks, count) = (self.ranks as usize, size / DType::F32.size());
                let codec = Codec::reduction(DType::F32, sum, ranks, count).ok()?;
                (cost::bytes_in_packets(size, codec), Framing::packets_at(mtu))
            }
        };
        Some(1e3 * cost::seconds(self.units(way), bytes, framing, self.rate))
    }

    /// Bytes of f32 in a sum, or in the sums of a step.
    fn bytes(&self) -> usize {
        self.chosen.as_ref().map_or(self.size, |Chosen { step, .. }| 4 * step.elements())
    }

    /// Megabytes that the link of a rank's host, and that of a spare machine, carry each way for
    /// f32, headers included.
    fn megabytes(&self, way: Way) -> [Option<f64>; 2] {
        let (hosts, units) = (self.hosts(), self.units(way));
        let mtu = self.mtu.into();
        let framing = match way {
            Way::Ring => Framing::Tcp { mtu },
            _ => Framing::packets_at(mtu),
        };
        let spare = f64::from(self.spare) * self.spare_rate() as f64 / self.rate as f64;
        let [host, spares] = match way {
            Way::Ring | Way::RanksHosts => [units, 0.0],
            Way::Spare => [1.0, f64::from(hosts)],
            // Rule 36.4: all of them are busy for the whole time.
            Way::Both if spare < f64::from(hosts) => [units, units * spare],
            Way::Both => [1.0, f64::from(hosts)],
        };
        let megabytes = |units: f64| units * self.bytes() as f64 * framing.overhead() / 1e6;
        let of_one = Some(spares / f64::from(self.spare)).filter(|_| spares > 0.0);
        [Some(megabytes(host)), of_one.map(megabytes)]
    }

    /// The time as a part of a ring's for f32; for a step the speed-up, which is one by that.
    fn ratio(&self, milliseconds: f64) -> f64 {
        let ring = self.milliseconds(Way::Ring, Precision::Exact).unwrap_or(f64::NAN);
        if self.chosen.is_some() { ring / milliseconds } else { milliseconds / ring }
    }

    /// Of the ways that are about as fast as the fastest one, the one with the fewest daemons.
    fn best(&self) -> Way {
        let ours = || self.ways().filter(|way| *way != Way::Ring);
        let fastest = ours().map(|way| self.units(way)).fold(f64::INFINITY, f64::min);
        ours().find(|way| self.units(*way) * WORTH <= fastest).unwrap_or(Way::RanksHosts)
    }

    fn advice(&self) -> String {
        let spare = names("SPARE", self.spare.into());
        match (self.best(), self.spare) {
            (Way::Ring | Way::RanksHosts, _) => {
                "start nothing: ranks that are given no aggregator serve each other".to_owned()
            }
            (Way::Spare, 1) => format!(
                "start switchml-aggregator on the spare machine, and give it: \
                 SWITCHML_AGGREGATOR={spare}"
            ),
            (Way::Spare, machines) => format!(
                "start switchml-aggregator on the {machines} spare machines, and give all: \
                 SWITCHML_AGGREGATOR={spare}"
            ),
            // Rule 36.15.
            (Way::Both, machines) if self.units(Way::Spare) > self.units(Way::Ring) => format!(
                "start switchml-aggregator on the spare machine{}; ranks' hosts help: \
                 SWITCHML_AGGREGATOR={spare}",
                if machines == 1 { "" } else { "s" },
            ),
            (Way::Both, machines) => format!(
                "start switchml-aggregator on all {} machines, and give all: \
                 SWITCHML_AGGREGATOR={spare},{}",
                self.hosts() + u32::from(machines),
                names("HOST", self.hosts())
            ),
        }
    }

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.hosts();
        write!(f, "{} ranks on {hosts} hosts with links of {}", self.ranks, Rate(self.rate))?;
        match self.spare {
            0 => {}
            1 => write!(f, ", a spare machine with {}", Rate(self.spare_rate()))?,
            more => write!(f, ", {more} spare machines with {} each", Rate(self.spare_rate()))?,
        }
        writeln!(f, ";")?;
        match &self.chosen {
            None => writeln!(f, "sums of {} bytes of f32, MTU {}\n", self.size, self.mtu)?,
            Some(Chosen { title, step }) => {
                let (compute, bytes) = (1e3 * step.compute().as_secs_f64(), self.bytes());
                writeln!(
                    f,
                    "steps of {title}:\n{compute:.1} ms of computing, {bytes} bytes of f32 \
                             in {} buckets, MTU {}\n",
                    buckets::of(step, 4).len(),
                    self.mtu
                )?;
            }
        }
        let ratio = if self.chosen.is_some() { "speedup" } else { "ratio" };
        write!(f, "{:24}{:>16}", "", "MB on a link")?;
        COLUMNS.iter().try_for_each(|(_, name)| write!(f, "{name:>20}"))?;
        write!(f, "\n{:24}{:>8}{:>8}", "", "host", "spare")?;
        COLUMNS.iter().try_for_each(|_| write!(f, "{:>12}{ratio:>8}", "ms"))?;
        writeln!(f)
    }
}

/// `NAME` if it is alone, otherwise the first and the last.
fn names(name: &str, count: u32) -> String {
    match count {
        1 => name.to_owned(),
        2 => format!("{name}1,{name}2"),
        _ => format!("{name}1,...,{name}{count}"),
    }
}

/// A rate for people.
struct Rate(u64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bits @ 1_000_000_000.. => write!(f, "{} Gb/s", bits as f64 / 1e9),
            bits => write!(f, "{} Mb/s", bits as f64 / 1e6),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        for way in self.ways() {
            let name = match way {
                Way::Ring => "ring (Gloo, NCCL on TCP)",
                Way::RanksHosts => "ranks' hosts",
                Way::Spare if self.spare == 1 => "spare machine",
                Way::Spare => "spare machines",
                Way::Both => "both",
            };
            write!(f, "{name:24}")?;
            for megabytes in self.megabytes(way) {
                match megabytes {
                    Some(megabytes) => write!(f, "{megabytes:>8.2}")?,
                    None => write!(f, "{:>8}", "-")?,
                }
            }
            for (precision, _) in COLUMNS {
                match self.milliseconds(way, precision) {
                    Some(time) => write!(f, "{time:>12.2}{:>8.2}", self.ratio(time))?,
                    None => write!(f, "{:>12}{:>8}", "-", "-")?,
                }
            }
            f.write_char('\n')?;
        }
        let (what, verb) = match self.chosen {
            None => ("ratio: to the time of a ring of f32", "Only links take"),
            Some(_) => ("speedup: over a ring of f32", "Only computing and links take"),
        };
        writeln!(
            f,
            "\nMB on a link: 10^6 bytes each way, exact.\n{what}. {verb} time; headers are counted."
        )?;
        f.write_str(&self.advice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: u64 = 1_000_000_000;

    fn plan(ranks: u32, spare: u16) -> Plan {
        Plan {
            ranks,
            rate: GIGABIT,
            spare,
            spare_rate: None,
            size: 16 << 20,
            ranks_per_host: 1,
            mtu: 1500,
            step: StepOptions::default(),
            chosen: None,
        }
    }

    fn rounded(number: f64) -> f64 {
        (number * 100.0).round() / 100.0
    }

    /// In units of M / B a ring of 4 takes 2 * 3 / 4 = 1.5, a spare machine 4 / 1, and it with the
    /// ranks' hosts 2 * 4 * 3 / (16 + 4 - 2) = 24 / 18.
    #[test]
    fn four_ranks_and_one_spare_machine() {
        let plan = plan(4, 1);
        let units = [Way::Ring, Way::RanksHosts, Way::Spare, Way::Both].map(|way| plan.units(way));
        assert_eq!(units.map(rounded), [1.5, 1.5, 4.0, 1.33]);
        // 16 MiB are 134.22 ms at 1 Gb/s; TCP sends 1514 bytes for 1448, and we 1482 for 1408 and
        // 353 words for 352. So 1.5 * 134.22 * 1.0456, and 4 or 1.333 * 134.22 * 1.0556.
        let time = |way| rounded(plan.milliseconds(way, Precision::Exact).unwrap());
        assert_eq!([Way::Ring, Way::Spare, Way::Both].map(time), [210.5, 566.69, 188.9]);
        // 566.69 / 210.50, and 188.90 / 210.50.
        assert_eq!([566.69, 188.9].map(|time| rounded(plan.ratio(time))), [2.69, 0.9]);
    }

    #[test]
    fn fewer_bits_take_less_time_where_there_are_such_sums() {
        let time = |ranks, way, precision| plan(ranks, 1).milliseconds(way, precision);
        let of_both = |precision| rounded(time(4, Way::Both, precision).unwrap());
        assert_eq!([of_both(Precision::Bits16), of_both(Precision::Bits8)], [94.45, 47.22]);
        assert_eq!(rounded(time(4, Way::Ring, Precision::Bits16).unwrap()), 105.25);
        assert_eq!(time(4, Way::Ring, Precision::Bits8), None);
        // 8 bits among more than 32 ranks travel in 16; 16 bits are for 128 ranks at most.
        let both = |precision| time(33, Way::Both, precision);
        assert_eq!(both(Precision::Bits8), both(Precision::Bits16));
        assert_eq!(time(129, Way::Both, Precision::Bits16), None);
    }

    #[test]
    fn advice_names_what_to_start() {
        let advice = |plan: Plan| plan.advice();
        let nothing = "start nothing: ranks that are given no aggregator serve each other";
        assert_eq!(advice(plan(4, 0)), nothing);
        // 2 ranks take M / B by themselves already.
        assert_eq!(advice(plan(2, 1)), nothing);
        // c = 1 saves a ninth of 1.5 with 4 ranks, and 1984 / 1054 of 1.9375 is too little for 32.
        assert_eq!(
            advice(plan(4, 1)),
            "start switchml-aggregator on the spare machine; ranks' hosts help: \
             SWITCHML_AGGREGATOR=SPARE"
        );
        assert_eq!(advice(plan(32, 1)), nothing);
        // A link of n B is all that is needed; c = 3 of 4 alone takes 1.33, with the others 1.09.
        let with = |spare_rate| Plan { spare_rate: Some(spare_rate), ..plan(4, 1) };
        assert_eq!(
            advice(with(4 * GIGABIT)),
            "start switchml-aggregator on the spare machine, and give it: \
             SWITCHML_AGGREGATOR=SPARE"
        );
        assert_eq!(
            advice(with(3 * GIGABIT)),
            "start switchml-aggregator on all 5 machines, and give all: \
             SWITCHML_AGGREGATOR=SPARE,HOST1,...,HOST4"
        );
        let as_many = advice(plan(4, 4));
        assert!(as_many.contains("on the 4 spare machines, and give all: "), "{as_many}");
        let many = advice(plan(8, 2));
        assert!(many.ends_with("ranks' hosts help: SWITCHML_AGGREGATOR=SPARE1,SPARE2"), "{many}");
    }

    /// Of 8 ranks on 4 hosts a ring has 8 members: 2 * 7 / 8. We have 4 hosts: 2 * 3 / 4. With
    /// frames of 1482 bytes for 1408, and 353 words for 352, 16 MiB are 17.7091 MB in packets; with
    /// 1514 for 1448, 17.5419 by TCP.
    #[test]
    fn ranks_of_a_host_count_as_one() {
        let plan = Plan { ranks_per_host: 2, ..plan(8, 0) };
        assert_eq!([plan.units(Way::Ring), plan.units(Way::RanksHosts)], [1.75, 1.5]);
        let of = |plan: &Plan, way| plan.megabytes(way).map(|load| load.map(rounded));
        // 1.75 * 17.5419, and 1.5 * 17.7091.
        assert_eq!(of(&plan, Way::Ring), [Some(30.7), None]);
        assert_eq!(of(&plan, Way::RanksHosts), [Some(26.56), None]);
        // A host sends its sum, of two ranks, to the spare machine, which gets those of 4 hosts.
        let plan = Plan { spare: 1, ..plan };
        assert_eq!(of(&plan, Way::Spare), [Some(17.71), Some(70.84)]);
        // 24 / 18 for all links.
        assert_eq!(of(&plan, Way::Both), [Some(23.61), Some(23.61)]);
        // As many spare machines as hosts take all of it: 4 * 1 / 4 each.
        let plan = Plan { spare: 4, ..plan };
        assert_eq!(of(&plan, Way::Both), [Some(17.71), Some(17.71)]);
        // With 2 and links twice as fast, so do they: 4 / 2.
        let plan = Plan { spare: 2, spare_rate: Some(2 * GIGABIT), ..plan };
        assert_eq!(of(&plan, Way::Spare), [Some(17.71), Some(35.42)]);
        // 2 hosts with 2 or 4 ranks of each: 2 * 1 / 2, and a ring's 1.5 and 1.75.
        for (ranks, ring) in [(4, 26.31), (8, 30.7)] {
            let plan = Plan { ranks_per_host: ranks / 2, spare: 0, ..self::plan(ranks, 0) };
            assert_eq!(of(&plan, Way::Ring), [Some(ring), None]);
            assert_eq!(of(&plan, Way::RanksHosts), [Some(17.71), None]);
        }
    }

    /// A gradient of 16 MiB that is ready after 90 of 100 ms, beside one of 4 bytes in the end. A
    /// ring of 4 takes 210.5 ms for the first and none for the second; in 8 bits ours take 53.13.
    #[test]
    fn a_step_is_computing_and_what_it_does_not_hide() {
        let text = "layer_index,numel,forward_pass_ns,backward_pass_ns\n\
                    a,1,30000000,10000000\nb,4194304,30000000,30000000\n";
        let step = switchml_step::file::parse(text).unwrap();
        let chosen = Some(Chosen { title: "two gradients".to_owned(), step });
        let plan = Plan { chosen, ..plan(4, 0) };
        let time = |way, precision| rounded(plan.milliseconds(way, precision).unwrap());
        assert_eq!(time(Way::Ring, Precision::Exact), 300.5);
        assert_eq!(time(Way::RanksHosts, Precision::Bits8), 143.13);
        assert_eq!(plan.milliseconds(Way::Ring, Precision::Bits8), None);
        assert_eq!(rounded(plan.ratio(143.13)), 2.1);
    }

    #[test]
    fn one_host_is_nothing_to_plan() {
        let failure = Plan { ranks_per_host: 4, ..plan(4, 0) }.run().unwrap_err();
        assert_eq!(failure.code(), 2);
        let failure = Plan { size: 3, ..plan(4, 0) }.run().unwrap_err();
        assert_eq!(failure.code(), 2);
    }
}
