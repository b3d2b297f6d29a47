//! The measuring kit under the `tautline-bench` program: pinning, the placement probe, the floors that the product is compared
//! with, samples, and the report.
//!
//! Every figure is a ratio to a floor measured in the same run: floor and product take turns in short rounds on the same two
//! cores, so that what the machine does to one it does to the other. `bench/README.md` says what each command counts.
#![forbid(unsafe_code)]

pub mod anchor;
pub mod awake;
pub mod call;
pub mod callgrind;
pub mod company;
pub mod counted;
pub mod crowd;
pub mod duo;
pub mod error;
pub mod fabric;
pub mod floor;
pub mod hol;
pub mod machine;
pub mod message;
pub mod page;
pub mod pin;
pub mod pipeline;
pub mod placement;
pub mod plot;
pub mod rate;
pub mod report;
pub mod rounds;
pub mod samples;
pub mod siege;
pub mod sizes;
pub mod workload;
