//! What the tests of all crates share: [`seeds`] to run a simulation under, [`clocks`] of its hosts, and a [`forger`] of packets.

#![forbid(unsafe_code)]

pub mod clocks;
pub mod forger;
pub mod seeds;
