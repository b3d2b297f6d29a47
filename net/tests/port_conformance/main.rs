//! The conformance suite of ports: the same cases on every kind of port that this machine has.
//!
//! A port is conformant if the protocol above can't tell it from the others: see [`cases`] for what that means. To add a port, add a
//! row to [`fabrics::ALL`]. What the machine lacks is skipped, and said.
//!
//!     cargo test -p tautline-net --test port_conformance            all cases on all ports
//!     cargo test -p tautline-net --test port_conformance udp burst  those whose name contains each word

mod bed;
mod cases;
mod fabrics;

use std::panic::AssertUnwindSafe;
use std::time::Instant;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if std::env::args().any(|word| word == "--list") {
        return;
    }
    let started = Instant::now();
    let (mut passed, mut skipped, mut failed) = (0, 0, Vec::new());
    for fabric in fabrics::ALL {
        if let Err(reason) = (fabric.check)() {
            println!("port {} ... skipped: {reason}", fabric.name);
            skipped += 1;
            continue;
        }
        for (case, run) in cases::ALL {
            let name = format!("{} / {case}", fabric.name);
            if !words.iter().all(|word| name.contains(word.as_str())) {
                continue;
            }
            let begun = Instant::now();
            // Each in its own thread, as a port and its network belong to one.
            let outcome = std::thread::scope(|scope| {
                scope.spawn(|| std::panic::catch_unwind(AssertUnwindSafe(|| run(bed::Bed::new(fabric))))).join()
            });
            if begun.elapsed().as_secs() >= 1 {
                println!("{name} ... took {:.1} s", begun.elapsed().as_secs_f32());
            }
            match outcome {
                Ok(Ok(bed::Outcome::Conforms)) => passed += 1,
                Ok(Ok(bed::Outcome::DoesNotApply(reason))) => {
                    println!("{name} ... does not apply: {reason}");
                    skipped += 1;
                }
                _ => {
                    println!("{name} ... FAILED");
                    failed.push(name);
                }
            }
        }
    }
    let seconds = started.elapsed().as_secs_f32();
    println!("port conformance: {passed} passed, {} failed, {skipped} skipped, in {seconds:.1} s", failed.len());
    if !failed.is_empty() {
        println!("failed:\n    {}", failed.join("\n    "));
        std::process::exit(1);
    }
}
