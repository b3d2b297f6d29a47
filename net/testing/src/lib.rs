//! What the tests of all crates share: [`seeds`] to run a simulation under, [`clocks`] of its hosts, a [`forger`] of packets, a [`mob`] of hostile
//! peers, and each kind of network as a [`fabric`] for the same test.

#![forbid(unsafe_code)]

pub mod clocks;
pub mod fabric;
pub mod forger;
pub mod mob;
pub mod seeds;
