//! Checks properties that all ranks of a job must share, because its RESULTs to all are one frame
//! (rule 5.11).

use switchml_protocol::bpf_types::job::Binding;

/// The property in which these ranks differ, and what to do, if they do. A combiner has only some
/// ranks of a job.
pub fn difference(members: &[(u16, Binding)]) -> Option<String> {
    let first = *members.first()?;
    members.iter().find_map(|&other| {
        let pair = Pair { first, other };
        pair.vlan().or_else(|| pair.kind_of_ip())
    })
}

/// The first rank and another one.
struct Pair {
    first: (u16, Binding),
    other: (u16, Binding),
}

impl Pair {
    fn vlan(&self) -> Option<String> {
        let name = |vlan| match vlan {
            0 => "no VLAN".to_owned(),
            vlan => format!("VLAN {vlan}"),
        };
        let (first, other) = (self.first.1.vlan, self.other.1.vlan);
        (first != other).then(|| {
            format!(
                "rank {} is in {}, rank {} in {}, but RESULTs go to all in one frame; have all \
                 ranks of a job in one VLAN",
                self.first.0,
                name(first),
                self.other.0,
                name(other)
            )
        })
    }

    fn kind_of_ip(&self) -> Option<String> {
        let ((rank, first), (other_rank, other)) =
            ((self.first.0, self.first.1.ip), (self.other.0, self.other.1.ip));
        (first.is_v4() != other.is_v4()).then(|| {
            format!(
                "rank {rank} is at {first}, rank {other_rank} at {other}, but RESULTs go to all in \
                 one kind of frame; have all ranks of a job reach the aggregator by IPv4, or all \
                 by IPv6"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn ranks_of_both_kinds_of_ip_are_told_so() {
        let at = |rank, ip| (rank, Binding { ip, ..Binding::default() });
        let v4 = |rank, last| at(rank, [10, 0, 0, last].into());
        let v6 = |rank, last| at(rank, Ipv6Addr::new(0xFD88, 0, 0, 0, 0, 0, 0, last).into());
        assert_eq!(difference(&[v4(0, 1), v4(1, 2)]), None);
        assert_eq!(difference(&[v6(0, 1), v6(1, 2)]), None);
        let expected = "rank 40 is at 10.0.0.1, rank 65 at fd88::3, but RESULTs go to all in one \
                        kind of frame; have all ranks of a job reach the aggregator by IPv4, or \
                        all by IPv6";
        let below_a_combiner = [v4(40, 1), v4(42, 2), v6(65, 3)];
        assert_eq!(difference(&below_a_combiner).as_deref(), Some(expected));
    }

    #[test]
    fn ranks_of_two_vlans_are_told_so() {
        let within = |rank, vlan| (rank, Binding { vlan, ..Binding::default() });
        assert_eq!(difference(&[within(3, 7), within(9, 7)]), None);
        let expected = "rank 3 is in VLAN 7, rank 9 in no VLAN, but RESULTs go to all in one \
                        frame; have all ranks of a job in one VLAN";
        assert_eq!(difference(&[within(3, 7), within(9, 0)]).as_deref(), Some(expected));
    }
}
