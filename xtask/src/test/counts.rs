//! The results of tests, counted from their output.

/// Counts of the results in libtest's lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    /// Tests marked `#[ignore]`, by name.
    pub ignored: Vec<String>,
    /// Tests that have begun but have no result, because their program was killed or aborted.
    pub lost: usize,
}

impl Counts {
    /// Counts a line of libtest. Three kinds of lines count: `running 13 tests`, `test a::b ...
    /// ignored, because`, and `test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; …`,
    /// which a program that dies does not write.
    pub fn add(&mut self, line: &str) {
        if let Some((number, _)) =
            line.strip_prefix("running ").and_then(|rest| rest.split_once(" test"))
        {
            self.lost += number.parse::<usize>().unwrap_or(0);
        } else if let Some((name, reason)) =
            line.strip_prefix("test ").and_then(|test| test.split_once(" ... ignored"))
        {
            self.ignored.push(format!("{name}: ignored{reason}"));
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.add_result(result);
        }
    }

    fn add_result(&mut self, result: &str) {
        let numbers = result.split_once(". ").map_or(result, |(_, numbers)| numbers);
        for part in numbers.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let Ok(number) = number.parse::<usize>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => {}
                _ => continue,
            }
            self.lost = self.lost.saturating_sub(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn lines_add_up() {
        let mut counts = Counts::default();
        for line in [
            "running 13 tests",
            "test a ... ok",
            "test b::c ... ignored, needs a cluster",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished \
             in 0.01s",
            "running 1 test",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; \
             finished in 1.50s",
        ] {
            counts.add(line);
        }
        let ignored = vec!["b::c: ignored, needs a cluster".to_owned()];
        assert_eq!(counts, Counts { passed: 12, failed: 1, ignored, lost: 0 });
    }

    #[test]
    fn the_tests_of_a_program_that_dies_are_lost() {
        let mut counts = Counts::default();
        for line in [
            "running 3 tests",
            "test a ... ok",
            "running 2 tests",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished \
             in 0.01s",
        ] {
            counts.add(line);
        }
        assert_eq!(counts, Counts { passed: 2, failed: 0, ignored: vec![], lost: 3 });
    }
}
