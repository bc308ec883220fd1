//! The way of a rank by RDMA.

use std::net::SocketAddr;

use switchml_protocol::node::roce;
use switchml_worker::control::{Access, Assigned};
use switchml_worker::interface::Interface;
use switchml_worker::rdma::{self, DevicePort, Unusable};

use super::cause::Cause;
use super::counters::Counters;
use super::device_errors::DeviceErrors;
use super::examine;
use super::judge::Evidence;
use super::obstacle::Obstacle;
use super::probes::BURST;
use super::small_packets::{Packets, SmallPackets};

/// The port that a rank uses; or the first thing that keeps it from RDMA here, and whether the
/// aggregator takes none.
pub fn find_port(assigned: &Assigned) -> Result<DevicePort, Vec<Unusable>> {
    let found = DevicePort::towards(assigned.data_address, assigned.shards().count());
    match (found, rdma::check_taken(assigned)) {
        (Ok(port), Ok(())) => Ok(port),
        (found, taken) => Err(found.err().into_iter().chain(taken.err()).collect()),
    }
}

/// Whether packets are smaller than they could be.
pub fn small_packets(
    port: &DevicePort,
    interface: Option<&Interface>,
    assigned: &Assigned,
) -> Option<Cause> {
    let interface = interface?;
    let mtu = interface.mtu as usize;
    let packets = Packets {
        max_lanes: assigned.max_lanes.into(),
        tag_len: examine::identity(assigned).tag_len(),
        is_ipv6: assigned.data_address.is_ipv6(),
    };
    let small = SmallPackets::find(port, &interface.name, mtu, &packets)?;
    Some(Cause::Rdma(Obstacle::SmallPackets(small)))
}

/// Packets that the device has lost since it counted `before`.
pub fn errors(port: &DevicePort, before: &DeviceErrors) -> Option<Cause> {
    let errors = DeviceErrors::read(port).since(before);
    let port = port.clone();
    (!errors.is_empty()).then_some(Cause::Rdma(Obstacle::Errors { port, errors, breaks: false }))
}

/// Why no HELLO by RDMA comes back. `name` names jobs for this examination.
pub fn closed_path(access: &Access, name: &str, port: &DevicePort) -> Vec<Cause> {
    let by_udp = format!("{name}-udp");
    let datagrams = examine::as_member(access, &by_udp, |job| examine::datagrams(access, job));
    let Some(datagrams) = datagrams.flatten() else { return vec![] };
    let cause = if datagrams.outcome.answers == 0 { datagrams.cause() } else { None };
    // What keeps datagrams from passing keeps messages of RDMA, too, unless it is about a port.
    if let Some(cause) = cause.filter(|cause| !matches!(cause, Cause::Filtered { .. })) {
        return vec![cause];
    }
    let silence = examine::as_member(access, name, |job| Silence::watch(access, job, port));
    silence.flatten().map(Silence::causes).unwrap_or_default()
}

/// What happens when nothing comes back by RDMA, though datagrams do.
struct Silence {
    port: DevicePort,
    /// What happens to datagrams to RDMA's port, which nobody answers.
    evidence: Evidence,
    /// Whether the aggregator has seen HELLO.
    hello_seen: bool,
    /// Whether the device has given up, as Soft-RoCE does when a packet cannot leave.
    has_failed: bool,
    /// Whether the device is Soft-RoCE, whose packets pass this host's firewall.
    is_soft: bool,
    /// Packets that the device has lost meanwhile.
    errors: DeviceErrors,
}

impl Silence {
    /// Says HELLO by RDMA, and sends datagrams to RDMA's port.
    fn watch(access: &Access, assigned: &Assigned, port: &DevicePort) -> Option<Self> {
        let target = SocketAddr::new(assigned.data_address.ip(), roce::PORT);
        let (before, counted) = (Counters::read(target.is_ipv6()), DeviceErrors::read(port));
        let answered = rdma::is_answered(assigned);
        let errors = DeviceErrors::read(port).since(&counted);
        // A device that fails without counting it has said why when the path was opened.
        if matches!(answered, Ok(true)) || answered.is_err() && errors.is_empty() {
            return None;
        }
        let hello_seen = examine::aggregator(access, assigned)?.reply.hello_seen;
        let evidence = examine::gather(target, &[0], &before, None)?;
        let (has_failed, is_soft) = (answered.is_err(), counted.are_of_soft_roce());
        Some(Self { port: port.clone(), evidence, hello_seen, has_failed, is_soft, errors })
    }

    fn causes(self) -> Vec<Cause> {
        let Self { port, evidence, hello_seen, has_failed, is_soft, errors } = self;
        let breaks = match hello_seen {
            true => errors.received() >= u64::from(BURST),
            // This host's firewall refuses datagrams, too.
            false => has_failed && errors.sent() > 0 && evidence.outcome.refused == 0,
        };
        let lost = || match !hello_seen && evidence.reaches_host() {
            true => Cause::Rdma(Obstacle::Unheard(port.clone())),
            false => evidence.filtered_by_rdma(hello_seen, is_soft, errors.sent() > 0),
        };
        let mut causes: Vec<_> = (!breaks).then(lost).into_iter().collect();
        if !errors.is_empty() {
            causes.push(Cause::Rdma(Obstacle::Errors { port, errors, breaks }));
        }
        causes
    }
}

#[cfg(test)]
mod tests {
    use switchml_worker::rdma::Mtu;

    use super::*;
    use crate::doctor::judge::tests::evidence;
    use crate::doctor::probes::{Complaint, What};

    /// Lines about HELLOs by RDMA that nobody answers, of which the aggregator has seen some or
    /// none, with these counters of a device.
    fn lines(hello_seen: bool, counts: &[(&'static str, u64)]) -> Vec<(bool, String)> {
        causes(silence(hello_seen, counts))
    }

    fn silence(hello_seen: bool, counts: &[(&'static str, u64)]) -> Silence {
        let mtu = Mtu { active: 1024, most: 4096 };
        let port = DevicePort { device: "mlx5_0".to_owned(), port: 1, mtu };
        let errors = DeviceErrors::of(counts);
        let (has_failed, is_soft) = (false, false);
        Silence { port, evidence: evidence(), hello_seen, has_failed, is_soft, errors }
    }

    fn causes(silence: Silence) -> Vec<(bool, String)> {
        silence.causes().iter().map(|cause| (cause.breaks(), cause.to_string())).collect()
    }

    const SEEN: &str =
        "filtered port: UDP to port 4791 gets to the aggregator, and its answers are dropped";

    #[test]
    fn a_firewall_is_named_unless_the_device_drops_the_answers() {
        assert_eq!(lines(true, &[]), [(true, SEEN.to_owned())]);
        let damaged = "lost by mlx5_0: 10 packets came with a wrong ICRC (rx_icrc_encapsulated), \
                       while this ran; packets of other programs count, too";
        assert_eq!(lines(true, &[("rx_icrc_encapsulated", 10)]), [(true, damaged.to_owned())]);
    }

    #[test]
    fn a_device_that_cannot_send_is_no_filter() {
        let failed = || Silence { has_failed: true, ..silence(false, &[("send_err", 1)]) };
        let unsent = "lost by mlx5_0: 1 packets could not be sent (send_err), while this ran; \
                      packets of other programs count, too";
        assert_eq!(causes(failed()), [(true, unsent.to_owned())]);
        let mut refused = failed();
        refused.evidence.outcome.refused = BURST;
        let lines = causes(refused);
        assert!(lines[0].1.contains("by this host's firewall on its way out"), "{lines:?}");
        assert_eq!(lines[1], (false, unsent.to_owned()));
    }

    #[test]
    fn errors_that_explain_no_silence_are_a_remark() {
        // Fewer than the answers that are missing.
        let few = lines(true, &[("rx_icrc_encapsulated", 1)]);
        assert_eq!((few.len(), &few[0]), (2, &(true, SEEN.to_owned())));
        assert!(!few[1].0, "{few:?}");
        // The aggregator has answered nothing.
        let unseen = lines(false, &[("rx_icrc_encapsulated", 10)]);
        assert_eq!(
            unseen[0],
            (
                true,
                "filtered port: UDP to port 4791 is dropped between this host and the aggregator, \
                 or its NIC keeps it for the host's own RDMA (mlx5: enable_roce)"
                    .to_owned()
            )
        );
        assert!(!unseen[1].0, "{unseen:?}");
    }

    #[test]
    fn a_host_that_answers_for_the_port_has_no_firewall_before_it() {
        let mut silence = silence(false, &[]);
        let from = silence.evidence.target.ip();
        silence.evidence.outcome.complaints = vec![Complaint { from, what: What::PortUnreachable }];
        let [(true, line)] = &causes(silence)[..] else { panic!("one cause that breaks it") };
        assert!(line.starts_with("messages of mlx5_0 get lost, while datagrams"), "{line}");
    }
}
