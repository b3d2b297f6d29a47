//! The protocol over the simulated network, in virtual time: what it does, named as behaviours, and seeds of everything that networks do.
//!
//! A failing seed is printed; `TAUTLINE_SEED=n cargo test -p tautline-net --test simulated seeds` repeats it alone. `scripts/seeds` runs more.

mod abuse;
mod acknowledgements;
mod babble;
mod behaviour;
mod bundles;
mod failure;
mod flood;
mod following;
mod incast;
mod ledger;
mod seeds;
mod world;
