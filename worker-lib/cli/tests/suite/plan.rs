//! `switchml-worker plan` from end to end. It sends nothing, so it needs no daemon.

use std::process::{Command, Output};

fn plan(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchml-worker"));
    command.arg("plan").args(arguments).output().unwrap()
}

/// 16 MiB take 134.22 ms at 1 Gb/s. A ring of 4 takes 1.5 times that, and TCP's headers; the ranks'
/// hosts 1.5, the spare machine 4, all together 1.333 times, with ours. 16 MiB are 17.54 MB by TCP,
/// and 17.71 in packets.
#[test]
fn a_table_and_a_line_of_advice() {
    let output = plan(&["--ranks", "4", "--rate", "1G", "--spare", "1"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = "\
4 ranks on 4 hosts with links of 1 Gb/s, a spare machine with 1 Gb/s;
sums of 16777216 bytes of f32, MTU 1500

                            MB on a link               exact             16 bits              8 bits
                            host   spare          ms   ratio          ms   ratio          ms   ratio
ring (Gloo, NCCL on TCP)   26.31       -      210.50    1.00      105.25    0.50           -       -
ranks' hosts               26.56       -      212.51    1.01      106.25    0.50       53.13    0.25
spare machine              17.71   70.84      566.69    2.69      283.35    1.35      141.67    0.67
both                       23.61   23.61      188.90    0.90       94.45    0.45       47.22    0.22

MB on a link: 10^6 bytes each way, exact.
ratio: to the time of a ring of f32. Only links take time; headers are counted.
start switchml-aggregator on the spare machine; ranks' hosts help: SWITCHML_AGGREGATOR=SPARE
";
    assert_eq!(text, expected);
}

/// 102,228,128 bytes take 598.57 ms by TCP in a ring of 8, which sends 1.75 times what a host has.
/// The first bucket, with the head, is ready just after the forward pass, a third of 292.24 ms, and
/// the links are busy from then on: 696.08. In 8 bits nearly all is hidden.
#[test]
fn a_training_step() {
    let output = plan(&["--model", "resnet50", "--ranks", "8", "--rate", "2.5G"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = "\
8 ranks on 8 hosts with links of 2.5 Gb/s;
steps of resnet50 on P100, batch 64 (tensorflow/docs, \
                    site/en/r1/guide/performance/benchmarks.md):
292.2 ms of computing, 102228128 bytes of f32 in 5 buckets, MTU 1500
";
    assert!(text.starts_with(expected), "{text}");
    // A ring's links carry 1.75 times 102.23 MB, with 1514 bytes for 1448.
    assert!(
        text.contains("ring (Gloo, NCCL on TCP)  187.05       -      696.08    1.00  "),
        "{text}"
    );
    assert!(text.contains("  306.61    2.27\n"), "{text}");
    assert!(text.contains("speedup: over a ring of f32. Only computing and links take time"));
}

/// What `trace` writes is the step that `plan` makes of the model itself.
#[test]
fn a_model_written_to_a_file() {
    let trace = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_switchml-worker"));
        command.arg("trace").args(arguments).output().unwrap()
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = trace(&["--model", "vgg16"]).stdout;
    assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 1 + 32);
    std::fs::write(&file, text).unwrap();
    let table = |step: &[&str]| {
        let output = plan(&[step, &["--ranks", "4", "--rate", "1G"]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().skip(2).map(|line| format!("{line}\n")).collect::<String>()
    };
    let of_file = table(&["--trace", file.path().to_str().unwrap()]);
    assert_eq!(of_file, table(&["--model", "vgg16"]));
    assert!(of_file.starts_with("415.6 ms of computing, 553430176 bytes"), "{of_file}");

    assert_eq!(trace(&[]).stderr, b"error: no model is given; use --model NAME\n");
}

/// Four ranks on each of two hosts: a ring of 8 carries 1.75 times 17.5419 MB, and ours, whose
/// ranks of a host share memory, 1 times 17.7091.
#[test]
fn ranks_of_a_host_carry_a_sum_once() {
    let output = plan(&["--ranks", "8", "--ranks-per-host", "4", "--rate", "1G"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("ring (Gloo, NCCL on TCP)   30.70       -      245.59 "), "{text}");
    assert!(text.contains("ranks' hosts               17.71       -      141.67 "), "{text}");
}

#[test]
fn a_mistake_is_one_line() {
    let output = plan(&["--ranks", "4", "--rate", "1G", "--ranks-per-host", "4"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(output.stdout, b"");
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "error: --ranks 4 with --ranks-per-host 4 fit on one host, so nothing crosses the network; \
         raise --ranks, or lower --ranks-per-host\n"
    );
}

#[test]
fn a_step_that_is_none_is_one_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "layer_index,numel,forward_pass_ns,backward_pass_ns\na,b,1,1\n").unwrap();
    let path = file.path().to_str().unwrap();
    let line_2 = format!(
        "error: --trace {path}: line 2 is \"a,b,1,1\"; a name, elements (up to 2^40) and two times \
         in ns (up to an hour), with commas between, are needed\n"
    );
    let sizes_alone = tempfile::NamedTempFile::new().unwrap();
    let text = "layer_index,numel,forward_pass_ns,backward_pass_ns\na,10,0,0\n";
    std::fs::write(&sizes_alone, text).unwrap();
    let without_times = sizes_alone.path().to_str().unwrap();
    let no_times = format!(
        "error: --trace {without_times}: all times are 0, so --compute has none to scale; give \
         each layer its share\n"
    );
    for (step, complaint) in [
        (&["--trace", path][..], &*line_2),
        (&["--trace", without_times, "--compute", "5"], &*no_times),
        (
            &["--trace", "/no/such/file"],
            "error: --trace /no/such/file: No such file or directory (os error 2)\n",
        ),
        (
            &["--model", "vgg11"],
            "error: no computing time of vgg11 is known; give one with --compute MS\n",
        ),
        (
            &["--compute", "5"],
            "error: --compute is the time of a training step; give that with --model or --trace\n",
        ),
    ] {
        let output = plan(&[step, &["--ranks", "4", "--rate", "1G"]].concat());
        assert_eq!(output.status.code(), Some(2), "{step:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), complaint);
    }
}
