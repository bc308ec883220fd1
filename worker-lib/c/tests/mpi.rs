//! Programs of MPI that know nothing of this project, in a rack: `worker-lib/mpi` between them and
//! Debian's Open MPI and MPICH.

use std::env;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use switchml_rack::{Aggregator, Binaries, Mpi, Process, Rack, RackOptions, needs_racks, skip};

/// How the library tells that it is at work.
const JOINED: &str = "switchml-mpi: 3 ranks sum up at ";
const PATIENCE: Duration = Duration::from_secs(60);

/// The folder in which cargo leaves `libswitchml.so` for this test.
fn library_folder() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A folder for the files of one MPI's test.
fn folder(mpi: Mpi, name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{mpi:?}-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A program of plain MPI.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../mpi/tests").join(name)
}

/// Names the library that comes before MPI: to the system's loader, or to MLX.
const PRELOAD: &str = "LD_PRELOAD";
const OF_MLX: &str = "MLX_MPI_LIBNAME";

/// Starts a program with a rank for each worker; with the library, which this variable names, if it
/// says where the aggregator is.
fn start(
    mpi: Mpi,
    rack: &Rack,
    (variable, aggregator): (&'static str, Option<&str>),
    folder: &Path,
    program: &[&OsStr],
) -> Process {
    let workers: Vec<_> = (0..rack.workers().len())
        .map(|rank| (rack.worker(rank), IpAddr::from(Rack::worker_address(rank))))
        .collect();
    let libraries = library_folder();
    let library = mpi.preload(&libraries, folder).unwrap();
    let mut environment = Vec::new();
    if let Some(aggregator) = aggregator {
        environment.push((variable, library.to_str().unwrap()));
        environment.push(("LD_LIBRARY_PATH", libraries.to_str().unwrap()));
        environment.push(("SWITCHML_AGGREGATOR", aggregator));
    }
    let top = (rack.switch(), rack.aggregator_address());
    mpi.start(top, &workers, folder, &environment, program).unwrap()
}

fn rack() -> Rack {
    Rack::new(RackOptions { workers: 3, ..RackOptions::default() }).unwrap()
}

/// Waits for the program that says so if all of its results are right.
fn expect_right(process: &mut Process) {
    process.wait_success(PATIENCE).unwrap();
    let (printed, said) = (process.stdout(), process.stderr());
    for rank in 0..3 {
        let line = format!("rank {rank} of 3: all right");
        assert!(printed.contains(&line), "{printed}\n{said}");
    }
}

/// The program's results are right, with the library and without, and the library's sums have the
/// same bits in every run.
fn programs_that_know_nothing_of_it(mpi: Mpi) {
    needs_racks!();
    let rack = rack();
    let aggregator = Aggregator::in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
    let folder = folder(mpi, "calls");
    let calls = mpi.program(&source("calls.c"), &folder).unwrap();
    let run = |aggregator: Option<&str>| {
        let mut process = start(mpi, &rack, (PRELOAD, aggregator), &folder, &[calls.as_os_str()]);
        expect_right(&mut process);
        assert_eq!(process.stderr().contains(JOINED), aggregator.is_some(), "{}", process.stderr());
        let printed = process.stdout();
        printed.lines().find(|line| line.starts_with("bits ")).unwrap().to_owned()
    };
    run(None);
    let bits = run(Some(aggregator.control()));
    for _ in 0..3 {
        assert_eq!(run(Some(aggregator.control())), bits);
    }
}

#[test]
fn open_mpis_programs() {
    programs_that_know_nothing_of_it(Mpi::OpenMpi);
}

#[test]
fn mpichs_programs() {
    programs_that_know_nothing_of_it(Mpi::Mpich);
}

#[test]
fn mpi4py() {
    needs_racks!();
    let rack = rack();
    let aggregator = Aggregator::in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
    let folder = folder(Mpi::OpenMpi, "mpi4py");
    let script = source("sums.py");
    // Debian's mpi4py is for Debian's Python.
    let program = ["/usr/bin/python3".as_ref(), script.as_os_str()];
    let with = (PRELOAD, Some(aggregator.control()));
    let mut process = start(Mpi::OpenMpi, &rack, with, &folder, &program);
    expect_right(&mut process);
    assert!(process.stderr().contains(JOINED), "{}", process.stderr());
}

/// MLX opens the library of MPI itself. `SWITCHML_MLX` names the folder of its interpreter.
#[test]
fn mlx() {
    needs_racks!();
    let Some(tools) = env::var_os("SWITCHML_MLX").map(PathBuf::from) else {
        return skip("mlx", "SWITCHML_MLX is not set; `cargo xtask test -- --test mpi` sets it");
    };
    let rack = rack();
    let aggregator = Aggregator::in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
    let folder = folder(Mpi::OpenMpi, "mlx");
    let (python, script) = (tools.join("python"), source("mlx_sums.py"));
    let program = [python.as_os_str(), script.as_os_str()];
    let with = (OF_MLX, Some(aggregator.control()));
    let mut process = start(Mpi::OpenMpi, &rack, with, &folder, &program);
    expect_right(&mut process);
    assert!(process.stderr().contains(JOINED), "{}", process.stderr());
}

/// MPI works without the library, and one line says why.
#[test]
fn without_an_aggregator() {
    needs_racks!();
    let rack = rack();
    let folder = folder(Mpi::OpenMpi, "alone");
    let calls = Mpi::OpenMpi.program(&source("calls.c"), &folder).unwrap();
    let nowhere = format!("{}:1", rack.aggregator_address());
    let mut process =
        start(Mpi::OpenMpi, &rack, (PRELOAD, Some(&nowhere)), &folder, &[calls.as_os_str()]);
    expect_right(&mut process);
    let said = process.stderr();
    let mut lines = said.lines().filter(|line| line.starts_with("switchml-mpi: "));
    let line = lines.next().unwrap_or_default();
    assert!(
        line.starts_with("switchml-mpi: rank 0: no aggregator answers at ")
            && line.ends_with("; MPI makes this communicator's calls itself"),
        "{said}"
    );
}
