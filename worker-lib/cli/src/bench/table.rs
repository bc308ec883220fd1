//! The table of nccl-tests, with the same columns: tools that read that table can read this one.

use std::fmt;

use super::report::{Calls, Late, Measured, Quantiles, Report, Row, Setup};

/// The lines above the rows.
pub struct Head<'a>(pub &'a Report);

/// The lines below the rows.
pub struct Foot<'a>(pub &'a Report);

impl fmt::Display for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { setup, .. } = self.0;
        writeln!(
            f,
            "# nRanks {} minBytes {} maxBytes {} step: {} warmup iters: {} iters: {} \
             validation: {}",
            setup.world_size,
            setup.minbytes,
            setup.maxbytes,
            setup.step,
            setup.warmup_iters,
            setup.iters,
            setup.check
        )?;
        writeln!(f, "#")?;
        let Setup { version, aggregator, data_threads, .. } = setup;
        writeln!(
            f,
            "# Using switchml-worker {version}, aggregator at {aggregator}, data threads a rank: \
             {data_threads}"
        )?;
        writeln!(f, "#")?;
        writeln!(
            f,
            concat!(
                "# {:10}  {:12}  {:8}  {:6}  {:6}           out-of-place            ",
                "           in-place          "
            ),
            "", "", "", "", ""
        )?;
        writeln!(
            f,
            concat!(
                "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}",
                "  {:>7}  {:>6}  {:>6} {:>6}  {:>7}  {:>6}  {:>6} {:>6}"
            ),
            "size",
            "count",
            "type",
            "redop",
            "root",
            "time",
            "algbw",
            "busbw",
            "#wrong",
            "time",
            "algbw",
            "busbw",
            "#wrong"
        )?;
        write!(
            f,
            concat!(
                "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}",
                "  {:>7}  {:>6}  {:>6}  {:>5}  {:>7}  {:>6}  {:>6}  {:>5}"
            ),
            "(B)",
            "(elements)",
            "",
            "",
            "",
            "(us)",
            "(GB/s)",
            "(GB/s)",
            "",
            "(us)",
            "(GB/s)",
            "(GB/s)",
            ""
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, count, dtype, redop, root, out_of_place, in_place } = self;
        write!(f, "{size:12}  {count:12}  {dtype:>8}  {redop:>6}  {root:6}{out_of_place}{in_place}")
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = match self.time_us {
            10_000.0.. => 0,
            100.0.. => 1,
            _ => 2,
        };
        write!(f, "  {:7.decimals$}  {:6.2}  {:6.2}  ", self.time_us, self.algbw, self.busbw)?;
        match self.wrong {
            Some(wrong) => write!(f, "{wrong:5}"),
            None => write!(f, "{:>5}", "N/A"),
        }
    }
}

impl fmt::Display for Foot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let verdict = if report.is_right() { "OK" } else { "FAILED" };
        writeln!(f, "# Out of bounds values : {} {verdict}", report.out_of_bounds)?;
        writeln!(f, "# Avg bus bandwidth    : {:.6}", report.avg_busbw)?;
        writeln!(f, "#")?;
        for size in &report.differing {
            writeln!(f, "# The ranks' results of {size} B differ in their bits.")?;
        }
        writeln!(f, "# {}", report.goodput)?;
        let Calls {
            chunks,
            empty,
            rooms,
            resent_by_timer,
            resent_by_overtaking,
            probes,
            rtt_us,
            stragglers,
            ..
        } = &report.sent;
        writeln!(
            f,
            "# Rank 0 sent {chunks} chunks; again {resent_by_timer} without an answer, \
             {resent_by_overtaking} overtaken, {probes} to check on a late rank"
        )?;
        if *empty > 0 {
            writeln!(
                f,
                "# Of these, {empty} of zeros were headers alone; {rooms} were asked for in full"
            )?;
        }
        if let Some(Quantiles { p50, p99, p999, max, .. }) = rtt_us {
            writeln!(
                f,
                "# Round trips of rank 0's chunks: median {p50:.0} us, 99 % within {p99:.0} us, \
                 99.9 % within {p999:.0} us, all within {max:.0} us"
            )?;
        }
        for Late { rank, chunks, waited_us } in stragglers {
            writeln!(
                f,
                "# Rank 0 waited for rank {rank} with {chunks} chunks, {waited_us:.0} us in all"
            )?;
        }
        writeln!(
            f,
            "# time: mean of the iterations on the slowest rank. out-of-place: with the copy into \
             the result's buffer, for"
        )?;
        writeln!(
            f,
            "# the library reduces in place. busbw: algbw 2(n-1)/n, what links carry when ranks \
             exchange values point to point;"
        )?;
        writeln!(
            f,
            "# aggregation in the network sends each value once, up and down, and may exceed the \
             link's speed in this column."
        )?;
        let Setup { world_size, lanes, attachment, .. } = &report.setup;
        write!(
            f,
            "#\n# {world_size} workers, chunks of {lanes} lanes ({} bytes); aggregator: \
             {attachment}",
            4 * lanes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Waits;
    use super::*;

    fn report() -> Report {
        let measured = |time_us, wrong| Measured {
            time_us,
            algbw: 0.17,
            busbw: 0.26,
            wrong,
            sent: Calls::default(),
        };
        Report {
            setup: Setup {
                version: "0.1.0",
                aggregator: "10.88.0.254:48865".into(),
                data_plane: "xdp".into(),
                attachment: "native on p0, p1".into(),
                world_size: 4,
                lanes: 352,
                data_threads: 1,
                dtype: "float",
                redop: "sum",
                minbytes: 8,
                maxbytes: 16_777_216,
                step: "2(factor)".into(),
                warmup_iters: 1,
                iters: 5,
                check: 1,
                sparsity: 0.0,
            },
            rows: vec![Row {
                size: 16_777_216,
                count: 4_194_304,
                dtype: "float",
                redop: "sum",
                root: -1,
                out_of_place: measured(98_000.4, Some(0)),
                in_place: measured(97.125, None),
            }],
            out_of_bounds: 0,
            avg_busbw: 0.26,
            differing: vec![],
            goodput: "Goodput".into(),
            sent: Calls {
                calls: 40,
                chunks: 1000,
                empty: 0,
                rooms: 0,
                resent_by_timer: 3,
                resent_by_overtaking: 2,
                probes: 1,
                pending: 1,
                speculative: 0,
                misspeculated: 0,
                rtt_us: Some(Quantiles {
                    p50: 64.2,
                    p90: 80.0,
                    p99: 150.4,
                    p999: 999.9,
                    max: 12_000.0,
                }),
                finished_us: vec![(0.0, 80.0), (100.0, 980.0)],
                stragglers: vec![Late { rank: 2, chunks: 1, waited_us: 11_900.4 }],
            },
            waits: Waits::default(),
        }
    }

    /// The lines that nccl-tests 2.14 prints, with its own spaces.
    #[test]
    fn the_table_of_nccl_tests() {
        let report = report();
        let head = Head(&report).to_string();
        let lines: Vec<&str> = head.lines().collect();
        assert_eq!(
            lines[0],
            "# nRanks 4 minBytes 8 maxBytes 16777216 step: 2(factor) warmup iters: 1 iters: 5 \
             validation: 1"
        );
        let columns = &lines[lines.len() - 3..];
        assert_eq!(
            columns,
            [
                concat!(
                    "#                                                 ",
                    "             out-of-place                       in-place          "
                ),
                concat!(
                    "#       size         count      type   redop    root",
                    "     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
                ),
                concat!(
                    "#        (B)    (elements)                        ",
                    "       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       "
                ),
            ]
        );
        assert_eq!(
            report.rows[0].to_string(),
            concat!(
                "    16777216       4194304     float     sum      -1",
                "    98000    0.17    0.26      0    97.12    0.17    0.26    N/A"
            )
        );
        let foot = Foot(&report).to_string();
        assert!(
            foot.contains(
                "# Rank 0 sent 1000 chunks; again 3 without an answer, 2 overtaken, 1 to check on"
            ),
            "{foot}"
        );
        assert!(
            foot.contains(
                "# Round trips of rank 0's chunks: median 64 us, 99 % within 150 us, 99.9 % within \
                 1000 us, all within 12000 us\n\
                 # Rank 0 waited for rank 2 with 1 chunks, 11900 us in all\n"
            ),
            "{foot}"
        );
        assert!(
            foot.starts_with(
                "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.260000\n#\n"
            ),
            "{foot}"
        );
    }

    #[test]
    fn times_have_as_many_decimals_as_nccl_tests() {
        for (time_us, text) in [
            (3.0, "   3.00"),
            (99.99, "  99.99"),
            (100.0, "  100.0"),
            (9999.94, " 9999.9"),
            (10_000.0, "  10000"),
        ] {
            let measured = Measured {
                time_us,
                algbw: 1.0,
                busbw: 2.0,
                wrong: Some(7),
                sent: Calls::default(),
            };
            assert_eq!(measured.to_string(), format!("  {text}    1.00    2.00      7"));
        }
    }

    #[test]
    fn wrong_elements_fail() {
        let mut report = report();
        report.out_of_bounds = 3;
        assert!(report.verdict().is_err());
        report.out_of_bounds = 0;
        report.differing = vec![64];
        assert!(report.verdict().is_err());
        report.out_of_bounds = 3;
        let foot = Foot(&report).to_string();
        assert!(foot.contains("# Out of bounds values : 3 FAILED"), "{foot}");
        assert!(foot.contains("results of 64 B differ"), "{foot}");
    }
}
