//! Soft-RoCE, Linux's own RDMA device in software: ranks by RDMA (verbs) in a machine in QEMU.
//!
//! The older kernels' `rdma_rxe` serves the first network namespace alone. So the ranks live there,
//! beside a device on a veth, and the aggregator behind the veth's other end, in a namespace of its
//! own.

use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};

use super::image::Kernel;
use crate::setup::debian::Apt;

/// The kind of port.
pub const RXE: &str = "rxe";
/// The option of the kernel's command line that has the machine run [`SCRIPT`].
pub const OPTION: &str = "RXE=1";
/// Programs that the script starts, in addition to the tests'.
pub const TOOLS: [&str; 1] = ["rdma"];

/// Debian's suite whose libraries run with the C library of any system that this project does.
const SUITE: &str = "bookworm";
const PACKAGES: [&str; 4] =
    ["libibverbs1", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200"];

/// Modules, in the order in which they are loaded. Linux 6.1's `rdma_rxe` needs the first without
/// saying so; later ones have none of its name. 7.3's no longer needs `ib_uverbs`, but libibverbs
/// does, which is loaded where udev runs.
pub fn modules(kernel: &Kernel) -> Vec<&'static str> {
    let all = ["crc32_generic", "ib_uverbs", "rdma_rxe", "sch_netem", "cls_u32", "act_gact"];
    all.into_iter().filter(|module| kernel.has_module(module)).collect()
}

/// Packages of libibverbs and its devices, downloaded into this folder unless they are there.
pub fn packages(folder: &Path) -> Result<Vec<PathBuf>> {
    let verbs = folder.join("verbs");
    let place = |package: &str| verbs.join(package).with_extension("deb");
    if PACKAGES.iter().any(|package| !place(package).is_file()) {
        eprintln!("matrix: downloading Debian's libibverbs into {}", verbs.display());
        fs::create_dir_all(&verbs)?;
        let apt = Apt::new(&folder.join("apt-verbs"), &[SUITE])?;
        for package in PACKAGES {
            fs::rename(apt.download(package)?, place(package))?;
        }
    }
    Ok(PACKAGES.map(place).to_vec())
}

/// Sums with ranks by RDMA, beside ranks with sockets, over links that lose, double and damage
/// packets, without a rank that is killed, and beyond a daemon that is; and what the doctor says,
/// with and without a filter. In software and natively in XDP, whose answers no queue of the link
/// sees. It prints what tests print.
pub const SCRIPT: &str = r#"
# Not the shell's own.
ip=$(which ip) tc=$(which tc)
$ip netns add switch
$ip link add rank type veth peer name port netns switch
$ip address add 10.88.0.1/24 dev rank; $ip link set rank up
$ip -n switch address add 10.88.0.254/24 dev port; $ip -n switch link set port up
rdma link add rxe0 type rxe netdev rank
ethtool -K rank gro on
export SWITCHML_AGGREGATOR=10.88.0.254:48865
# A namespace's /sys has no file system for BPF.
mkdir /bpf; mount -t bpf bpf /bpf

# A name of the data plane, and its options.
serve() {
  plane=$1; shift
  # Not what the last one said.
  : >/daemon
  $ip netns exec switch $binaries/switchml-aggregator \
    $* --rocev2 --control $SWITCHML_AGGREGATOR >>/daemon 2>&1 &
  daemon=$!
  until grep -q ready /daemon; do
    kill -0 $daemon || { cat /daemon; echo "test rxe::$plane ... FAILED"; poweroff -f; }
    sleep 0.2
  done
}
serve_natively() { serve native --mode native --iface port --pin-dir /bpf/switchml; }
stop() { kill $daemon; wait $daemon; }

# The name of a test, and the options of each rank.
start() {
  job=$1; shift; ranks=$#; rank=0; started=
  for options; do
    $binaries/switchml-worker bench --job $job --rank $rank --world-size $ranks \
      --local-sums 0 --minbytes ${least:-8} --maxbytes 2M --stepfactor 512 \
      --iters 1 --check ${checks:-1} --warmup-iters 0 $options >/$job.$rank 2>&1 &
    started="$started $!"; rank=$((rank + 1))
  done
}
# Within a minute, or never.
until_started() {
  for wait in $(seq 300); do grep -q "$job\": started" /daemon && return; sleep 0.2; done
}
# Within a minute, or never: rank 0 prints a line about each size.
until_measured() {
  for wait in $(seq 300); do grep -q "^ *$1 " /$job.0 && return; sleep 0.2; done
}
# The test is right if all ranks say so: they check each element.
finish() {
  outcome=ok
  for process in $started; do wait $process || outcome=FAILED; done
  [ $outcome = ok ] || cat /$job.*
  echo "test rxe::$plane::$job ... $outcome"
}
all() {
  start ranks_by_rdma --rdma=1 --rdma=1; finish
  start ranks_with_sockets_beside_them --rdma=1 " " --rdma=1; finish

  faults="netem loss 1% duplicate 1% corrupt 0.5% limit 10000"
  $tc qdisc add dev rank root $faults
  $tc -n switch qdisc add dev port root $faults
  start links_that_lose_double_and_damage --rdma=1 --rdma=1; finish
  $tc -s qdisc show dev rank | grep -q "dropped [1-9]" ||
    echo "test rxe::$plane::links_lose ... FAILED"
  $tc qdisc del dev rank root; $tc -n switch qdisc del dev port root

  checks=100000 start a_killed_rank_is_named --rdma=1 --rdma=1
  until_started
  set -- $started; kill -9 $2
  outcome=FAILED
  if ! wait $1 && grep "^error: " /$job.0 | grep -q "rank 1"; then outcome=ok; fi
  [ $outcome = ok ] || cat /$job.0
  echo "test rxe::$plane::$job ... $outcome"
}

# The name of a test, the doctor's exit code, and the begin of the only cause or remark, but for
# those that are $expected.
doctor() {
  code=0; $binaries/switchml-worker doctor --rdma=1 >/doctor 2>&1 || code=$?
  outcome=FAILED; named=$(grep -E "^(WHY|NOTE) " /doctor | grep -v "^${expected:-none}")
  case "$code $named" in "$2 $3"*) outcome=ok ;; esac
  [ $(echo "$named" | wc -l) = 1 ] || outcome=FAILED
  [ $outcome = ok ] || cat /doctor
  echo "test rxe::$plane::the_doctor_$1 ... $outcome"
}
# On the machine's one, emulated processor, a switch in software does lose packets of a burst.
content() {
  expected=; [ $plane = native ] || expected="NOTE  packets are lost: "
  doctor finds_all_well 0 "NOTE  small packets: rxe0 has a path MTU of 1024, so packets have 224"
  expected=
}
# The same with RDMA's port filtered: where at the rank's interface, and what the doctor says. To
# trap is to drop so that the sender does not hear of it.
filtered() {
  $tc qdisc add dev rank clsact
  $tc filter add dev rank $1 protocol ip u32 match ip dport 4791 0xffff action trap
  doctor names_a_port_filtered_at_$1 3 "WHY   filtered port: UDP to port 4791 $2"
  $tc qdisc del dev rank clsact
}

# Sums go on without the daemon, slowly: it starts again meanwhile, on the same processor. A rank
# that has not heard of the start ends with its daemon: calls of 4 KiB show that both have.
restart() {
  least=4K checks=4 start ranks_go_on_with_the_next_daemon --rdma=1 --rdma=1
  until_measured 4096
  kill -9 $daemon; wait $daemon
  renice -n 19 -p $started
  serve_natively
  finish
  # A rank comes back twice if it gave up a connection while the daemon started.
  [ $(grep -c "came back" /daemon) -ge 2 ] ||
    { cat /daemon; echo "test rxe::$plane::ranks_come_back ... FAILED"; }
}

serve software --data-plane software --data-address 10.88.0.254
all
content
filtered egress "is dropped between this host and the aggregator"
stop

serve_natively
all
content
filtered ingress "gets to the aggregator, and its answers are dropped"
# In software the data plane ends with its daemon.
restart
stop

outcome=ok
for counter in /sys/class/infiniband/rxe0/ports/1/hw_counters/*err*; do
  [ $(cat $counter) = 0 ] || { outcome=FAILED; echo $counter $(cat $counter); }
done
echo "test rxe::the_device_counts_no_errors ... $outcome"
"#;
