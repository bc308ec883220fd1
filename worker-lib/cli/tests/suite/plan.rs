//! `switchml-worker plan` from end to end. It sends nothing, so it needs no daemon.

use std::process::{Command, Output};

fn plan(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchml-worker"));
    command.arg("plan").args(arguments).output().unwrap()
}

/// 16 MiB take 134.22 ms at 1 Gb/s. A ring of 4 takes 1.5 times that, and TCP's headers; the ranks'
/// hosts 1.5, the spare machine 4, all together 1.333 times, with ours.
#[test]
fn a_table_and_a_line_of_advice() {
    let output = plan(&["--ranks", "4", "--rate", "1G", "--spare", "1"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = "\
4 ranks on 4 hosts with links of 1 Gb/s, a spare machine with 1 Gb/s;
sums of 16777216 bytes of f32, MTU 1500

                                       exact             16 bits              8 bits
                                  ms   ratio          ms   ratio          ms   ratio
ring (Gloo, NCCL on TCP)      210.50    1.00      105.25    0.50           -       -
ranks' hosts                  212.51    1.01      106.25    0.50       53.13    0.25
spare machine                 566.69    2.69      283.35    1.35      141.67    0.67
both                          188.90    0.90       94.45    0.45       47.22    0.22

ratio: to the time of a ring of f32. Only links take time; headers are counted.
start switchml-aggregator on the spare machine; ranks' hosts help: SWITCHML_AGGREGATOR=SPARE
";
    assert_eq!(text, expected);
}

#[test]
fn a_mistake_is_one_line() {
    let output = plan(&["--ranks", "4", "--rate", "1G", "--ranks-per-host", "4"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(output.stdout, b"");
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "error: --ranks 4 with --ranks-per-host 4 are one host, whose link carries nothing; there \
         is nothing to plan\n"
    );
}
