//! The same script of operations ends the same way on every port: simulated, in memory, and kernel UDP on loopback; and, without
//! restarts in it, on networks that lose, double and reorder. The script says what each operation must come to, so they can't all be wrong
//! together either.
//!
//! Both nodes run on one thread and in virtual time, on UDP too: a deadline passes when the script says so, and not when the machine is busy.
//! `TAUTLINE_SEED=7 cargo test -p tautline-rpc --test differential` runs one seed.

#![allow(unreachable_pub)]

mod run;
mod script;

use run::run;
use script::Script;
use tautline_testing::fabric::Fabric;

/// Seeds of the default run. Each is some hundreds of calls on each port.
const SEEDS: u64 = 12;

fn seeds() -> Vec<u64> {
    match std::env::var("TAUTLINE_SEED") {
        Ok(seed) => vec![seed.parse().expect("TAUTLINE_SEED is a number")],
        Err(_) => (1..=SEEDS).collect(),
    }
}

/// Runs each seed's script on each of these, and compares what came of it.
fn compare(fabrics: [Fabric; 3], restarts: bool) {
    for seed in seeds() {
        let script = Script::new(seed, restarts);
        assert!(script.operations() > 60, "seed {seed}: {} operations", script.operations());
        for fabric in fabrics {
            let record = run(&script, fabric);
            let place = format!("seed {seed} on {}", fabric.name());
            for (number, expected) in script.expected().iter().enumerate() {
                let ends = record.ends.get(&number).map(Vec::as_slice).unwrap_or_default();
                let scene = script.scene_of(number);
                assert_eq!(ends, std::slice::from_ref(expected), "{place}: operation {number} ({scene})");
            }
            assert_eq!(record.ends.len(), script.operations(), "{place}: ends of calls that were not made");
            assert_eq!(record.executed, script.executed(), "{place}: what handlers saw");
        }
    }
}

#[test]
fn a_script_ends_the_same_way_on_every_port() {
    compare(Fabric::GOOD, true);
}

#[test]
fn a_script_ends_the_same_way_where_packets_are_lost_doubled_and_reordered() {
    compare(Fabric::BAD, false);
}
