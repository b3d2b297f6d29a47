//! Tautline.
#![forbid(unsafe_code)]

pub mod bucket;
pub mod estimator;
pub mod header;
pub mod policy;
pub mod race;
pub mod table;
pub mod tombstones;
