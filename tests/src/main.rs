//! Holds an empty rack of four workers until it is interrupted, and says how to get in.

#![deny(clippy::print_stdout)]

use clap::Parser;
use switchml_cli::say;
use switchml_rack::{Namespace, Rack, RackOptions};

/// Holds an empty rack of four workers until it is interrupted, and says how to get in
#[derive(Parser)]
#[command(version)]
struct Arguments {}

fn main() {
    let Arguments {} = switchml_cli::parse();
    let rack = Rack::new(RackOptions::default()).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        std::process::exit(1);
    });
    let line =
        |namespace: &Namespace| say!("{:10} {}", namespace.name(), namespace.enter_command());
    line(rack.switch());
    rack.workers().iter().for_each(line);
    say!("ready; Ctrl-C removes the rack");
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_one_line() {
        switchml_cli::test::every_mistake_is_one_line::<Arguments>();
    }
}
