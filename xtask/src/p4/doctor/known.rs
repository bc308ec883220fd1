//! What tools for P4 tell about themselves, and what is known of them.

/// The releases of p4c that lose every `select` on Tofino: from the first one with
/// <https://github.com/p4lang/p4c/pull/5063>, to the last one that is known to lack
/// <https://github.com/p4lang/p4c/pull/5753>. What is built between two releases has the number of
/// the earlier one.
const LOSING: (Release, Release) = ([1, 2, 5, 11], [1, 2, 5, 16]);
const LAST_RIGHT: Release = [1, 2, 5, 9];

/// The number of a release of p4c.
type Release = [u32; 4];

/// The version of a compiler, which p4c's `frontends/common/parser_options.cpp` prints after the
/// program's name.
pub fn compiler_version(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("Version ")).map(|line| line.trim().to_owned())
}

/// The version of `simple_switch`, which is all that it prints.
pub fn switch_version(text: &str) -> Option<String> {
    let line = text.lines().next()?.trim();
    line.starts_with(|first: char| first.is_ascii_digit()).then(|| line.to_owned())
}

/// `bfas` prints how it is used, and no version.
pub fn assembler(text: &str) -> Option<String> {
    text.lines().any(|line| line.starts_with("usage: ")).then(|| "runs".to_owned())
}

/// What is known of p4c-barefoot, by the version of the compiler that was built with it.
pub fn of_tofinos_compiler(beside: Option<&str>) -> String {
    let (first, last) = LOSING;
    match beside.and_then(release) {
        Some(found) if found <= LAST_RIGHT => {
            "p4c-barefoot is of a p4c before #5063, and compiles parsers right".to_owned()
        }
        Some(found) if (first..=last).contains(&found) => {
            "p4c-barefoot is of a release that loses every `select` of a parser, unless it was \
             built with https://github.com/p4lang/p4c/pull/5753; cargo xtask p4 check tells"
                .to_owned()
        }
        _ => {
            "whether p4c-barefoot has https://github.com/p4lang/p4c/pull/5753 its number does not \
              tell; cargo xtask p4 check does"
                .to_owned()
        }
    }
}

/// What `simple_switch` lacks, by its options: they are there only if it was built with what they
/// need (bmv2's `src/bm_sim/options_parse.cpp`).
pub fn of_switch(options: &str) -> Option<String> {
    let needed = [("--thrift-port", "Thrift"), ("--notifications-addr", "nanomsg")];
    let lacks = needed.iter().filter(|(option, _)| !options.contains(option));
    let lacks: Vec<_> = lacks.map(|(_, library)| *library).collect();
    let without = || format!("simple_switch was built without {}", lacks.join(" and "));
    (!lacks.is_empty()).then(|| without() + ", so no daemon can control it")
}

/// The number at the start of a version.
fn release(version: &str) -> Option<Release> {
    let number = version.split_whitespace().next()?;
    let parts = number.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>()?;
    // Older releases have three parts.
    let parts = [&parts[..], &[0]].concat();
    parts.get(..4)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in <https://github.com/p4lang/p4c/issues/3095>; p4c prints this to standard error.
    #[test]
    fn a_compilers_version_is_in_the_line_after_its_name() {
        let version = compiler_version("p4c-bm2-ss\nVersion 1.2.2 (SHA: a9aa5ff BUILD: RELEASE)\n");
        assert_eq!(version.as_deref(), Some("1.2.2 (SHA: a9aa5ff BUILD: RELEASE)"));
        // BF_P4C_VERSION of backends/tofino/bf-p4c/version.h
        assert_eq!(compiler_version("p4c-barefoot\nVersion 9.13.4\n").as_deref(), Some("9.13.4"));
        let no_library = "p4c-bm2-ss: error while loading shared libraries: libgc.so.1: cannot \
                          open shared object file: No such file or directory\n";
        assert_eq!(compiler_version(no_library), None);
    }

    #[test]
    fn a_switch_prints_its_version_alone() {
        assert_eq!(switch_version("1.15.0-9f76fe9b\n").as_deref(), Some("1.15.0-9f76fe9b"));
        assert_eq!(switch_version("Error while parsing command line arguments\n"), None);
        assert_eq!(switch_version(""), None);
    }

    #[test]
    fn an_assembler_prints_its_usage() {
        let usage = "usage: /opt/p4c/bin/bfas [-l:Mo:gqtvh] file...\n";
        assert_eq!(assembler(usage).as_deref(), Some("runs"));
        assert_eq!(assembler("Segmentation fault\n"), None);
    }

    /// p4lang/p4c#5063 came between releases 1.2.5.10 and 1.2.5.11; 1.2.5.16 is of 2 August 2026,
    /// and #5753 was opened a month later.
    #[test]
    fn releases_that_lose_selects_are_known() {
        let says = |version: &str, words: &str| {
            let note = of_tofinos_compiler(Some(version));
            assert!(note.contains(words), "{version}: {note}");
        };
        says("1.2.2 (SHA: a9aa5ff BUILD: RELEASE)", "right");
        says("1.2.5.8 (SHA: 2265f8045 BUILD: Release)", "right");
        says("1.2.5.10 (SHA: 8ffb734bd2 BUILD: Release)", "does not tell");
        says("1.2.5.11", "loses");
        says("1.2.5.15 (SHA: 5b948b037a BUILD: Release)", "loses");
        says("1.2.5.17 (SHA: d46d824202 BUILD: Release)", "does not tell");
        says("9.13.4", "does not tell");
        assert!(of_tofinos_compiler(None).contains("does not tell"));
    }

    #[test]
    fn a_switch_that_lacks_a_library_is_known_by_its_options() {
        let both = "  --thrift-port arg  TCP port\n  --notifications-addr arg  Specify\n";
        assert_eq!(of_switch(both), None);
        let note = of_switch("  --thrift-port arg  TCP port\n").unwrap();
        assert!(note.contains("without nanomsg,"), "{note}");
        assert!(of_switch("").unwrap().contains("without Thrift and nanomsg,"));
    }
}
