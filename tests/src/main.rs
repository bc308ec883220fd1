//! Holds an empty rack of four workers until it is interrupted, and says how to get in.

use switchml_rack::{Namespace, Rack, RackOptions};

fn main() {
    let rack = Rack::new(RackOptions::default()).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        std::process::exit(1);
    });
    let line = |namespace: &Namespace| println!("{:10} {}", namespace.name(), namespace.enter_command());
    line(rack.switch());
    rack.workers().iter().for_each(line);
    println!("ready; Ctrl-C removes the rack");
    loop {
        std::thread::park();
    }
}
