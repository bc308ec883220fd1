//! `switchml-aggregator`, the daemon: see `--help`.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout)]

mod cli;
mod daemon;
mod logging;
#[cfg(feature = "otlp")]
mod otlp;
mod report;
#[cfg(feature = "top")]
mod top;

use std::process::ExitCode;

use anyhow::anyhow;
use clap::ArgMatches;
use cli::service_file::Service;
use daemon::Exposed;
use switchml_control::tls::{TlsError, WrongSetting};
use switchml_data_plane::xdp::StartError;
use switchml_userspace::tokens::KeyError;
use tokio::signal::unix::{Signal, SignalKind, signal};

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("cannot start threads")),
    };
    // First of all: a daemon that is told to reload while it starts is not to end.
    let hangups = {
        let _inside = runtime.enter();
        signal(SignalKind::hangup())
    };
    let hangups = match hangups {
        Ok(hangups) => hangups,
        Err(error) => return fail(&anyhow::Error::new(error).context("cannot listen for SIGHUP")),
    };
    let (cli, matches) = cli::parse();
    let result = runtime.block_on(run(cli, matches, hangups));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Runs the daemon, or a command.
async fn run(cli: cli::Cli, matches: ArgMatches, mut hangups: Signal) -> anyhow::Result<()> {
    #[cfg(feature = "otlp")]
    let collector = {
        let endpoint = cli.options.otlp_endpoint.as_ref();
        endpoint.map(otlp::Collector::at).transpose()?
    };
    #[cfg(feature = "otlp")]
    let spans = collector.as_ref().map(otlp::Collector::layer);
    #[cfg(not(feature = "otlp"))]
    let spans = None::<tracing_subscriber::layer::Identity>;
    logging::start(cli.options.log_format, spans);
    match cli.command {
        None if cli.options.check_config => daemon::check::check(&cli.options),
        None => daemon::run(cli.options, matches, hangups).await,
        Some(command) => tokio::select! {
            done = obey(command) => done,
            _ = hangups.recv() => Err(anyhow!("hung up")),
        },
    }
}

/// Carries out a command.
async fn obey(command: cli::Command) -> anyhow::Result<()> {
    match command {
        cli::Command::Status { at, json: true } => report::json(&aggregator(at)?).await,
        cli::Command::Status { at, json: false } => report::status(&aggregator(at)?).await,
        #[cfg(feature = "top")]
        cli::Command::Top { at } => top::run(&aggregator(at)?).await,
        cli::Command::Jobs { at } => report::jobs(&aggregator(at)?).await,
        cli::Command::Slots { job, at, json } => report::slots(&aggregator(at)?, job, json).await,
        cli::Command::Token { token_key, tenant, jobs, expires } => {
            daemon::token(&token_key, &tenant, &jobs, expires)
        }
        cli::Command::Detach { pin_dir } => daemon::detach(&pin_dir),
        cli::Command::Pages { folder } => {
            Ok(switchml_cli::pages::write::<cli::Cli>(&folder, &cli::MANUAL)?)
        }
        cli::Command::Reference { page } => {
            switchml_cli::say(page.text());
            Ok(())
        }
        #[cfg(feature = "p4")]
        cli::Command::Deploy { tofino_server, tofino_program } => {
            daemon::p4::deploy(tofino_server, &tofino_program)
        }
    }
}

/// The aggregator to ask.
fn aggregator(at: cli::At) -> anyhow::Result<report::Aggregator> {
    let service = match at.connect {
        Some(control) => Service { control, certificate: None },
        None => Service::of_this_host()?,
    };
    report::Aggregator::new(service, at.tls)
}

/// Prints the error and its causes in one line. The exit code is 2, as for other wrong options, if
/// options name no usable interfaces, files or addresses.
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("switchml-aggregator: {error:#}");
    let is_usage = error.downcast_ref().is_some_and(StartError::is_usage)
        || error.is::<WrongSetting>()
        || error.is::<TlsError>()
        || error.is::<KeyError>()
        || error.is::<Exposed>();
    if is_usage { ExitCode::from(2) } else { ExitCode::FAILURE }
}
