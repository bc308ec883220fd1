//! Combiners below which results travel as copies: one for all ranks of a host (rule 27.17).

use switchml_rack::{Plane, RackOptions};

use super::{ROOT, Site};
use crate::PATIENCE;
use crate::local_results::{HEADERS, all_reduce, load_on};

/// Two ranks on each of four hosts. A link carries what the host's ranks have added up, and one
/// copy of the sum.
pub fn copies_of_a_combiner_reach_a_host_once(plane: Plane, options: RackOptions) {
    let mut site = Site::new(plane, options);
    // In software there is no multicast.
    for rack in (0..2).filter(|_| plane == Plane::Programs) {
        site.combiners[rack].terminate(PATIENCE).unwrap();
        site.combiners[rack] = site.start_combiner_with(rack, ROOT, &["--fanout", "unicast"]);
    }
    let load = load_on(
        site.racks.workers(),
        &[2, 2, 2, 2],
        |host, builder| builder.aggregator(&site.joined[host]).own_hosts(false),
        all_reduce,
    );
    println!("{load:.3} of the tensor");
    assert!(load <= 1.05 * HEADERS, "{load} of the tensor");
}
