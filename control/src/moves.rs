//! The names that jobs get at aggregators: of those whose shards have moved to another one (rule
//! 36.9 of `docs/spec`), and of those that ranks' hosts help (rule 36.15).

/// Most bytes of a job's name.
pub const MAX_NAME_LEN: usize = 200;

/// What follows the name of a job at the aggregators given and those of the ranks' hosts.
pub const HOSTS_SUFFIX: &str = " and hosts";

/// Hexadecimal digits of a job's secret for moves.
const DIGITS: usize = 16;

/// The name of a job at an aggregator that goes on in place of the one that gave it this secret.
pub fn moved_name(job: &str, secret: u64) -> String {
    let end = job.floor_char_boundary(MAX_NAME_LEN - DIGITS - 1);
    format!("{}#{secret:0DIGITS$x}", &job[..end])
}

/// The name of a job as anybody may know it: who knows a secret can take a rank's seat.
pub fn public_name(name: &str) -> String {
    match name_before_move(name) {
        Some(job) => format!("{job}#{}", "x".repeat(DIGITS)),
        None => name.to_owned(),
    }
}

/// The name that a job had before a move, if this is the name that it got by one.
pub fn name_before_move(name: &str) -> Option<&str> {
    let (job, number) = name.rsplit_once('#')?;
    let is_number = number.len() == DIGITS && number.bytes().all(|it| it.is_ascii_hexdigit());
    is_number.then_some(job)
}

/// A job's name as its users gave it, for people: without what ranks put behind it.
pub fn shown_name(name: &str) -> &str {
    let name = name_before_move(name).unwrap_or(name);
    name.strip_suffix(HOSTS_SUFFIX).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_part_has_a_name_of_its_own() {
        assert_eq!(moved_name("train", 0xABC), "train#0000000000000abc");
        let long = "ä".repeat(100);
        assert_eq!(moved_name(&long, 1), format!("{}#0000000000000001", "ä".repeat(91)));
    }

    #[test]
    fn people_see_the_name_that_they_gave() {
        for name in
            ["a b", "a b and hosts", "a b#0000000000000abc", "a b and hosts#0000000000000abc"]
        {
            assert_eq!(shown_name(name), "a b");
        }
        assert_eq!(shown_name("and hosts"), "and hosts");
    }

    #[test]
    fn nobody_reads_the_secret() {
        assert_eq!(public_name("train#0000000000000abc"), "train#xxxxxxxxxxxxxxxx");
        assert_eq!(public_name("train#7"), "train#7");
    }

    #[test]
    fn the_way_back() {
        assert_eq!(name_before_move("a#b#0000000000000abc"), Some("a#b"));
        for other in ["a", "a#b", "a#0000000000000abg", "a#0000000000000ab", "0000000000000abc"] {
            assert_eq!(name_before_move(other), None, "{other}");
        }
    }
}
