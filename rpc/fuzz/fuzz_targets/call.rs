//! The fuzz target `call`; see [`tautline_rpc_fuzz::call`]. Built without `cargo fuzz` it runs the files that it is given.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_rpc_fuzz::call::run(data));

#[cfg(not(fuzzing))]
fn main() {
    tautline_net_fuzz::replay::arguments(tautline_rpc_fuzz::call::run);
}
