//! Runnable services built on Tautline: `echo`, a page, and `chunkstore`, a replicated read service.
//!
//! They are programs; this library holds nothing but the README, whose code is compiled and run as a test of it.
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
