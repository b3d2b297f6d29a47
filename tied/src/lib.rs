//! Tautline.
#![forbid(unsafe_code)]

pub mod bucket;
pub mod choice;
pub mod estimator;
pub mod header;
pub mod ids;
pub mod policy;
pub mod race;
pub mod table;
pub mod tombstones;
