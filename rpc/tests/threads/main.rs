//! Nodes on real ports and real threads: workers, handles, waiting modes. Nothing here depends on how fast the machine is: what must
//! happen is waited for, with a patience that only a hang exhausts.
#![allow(unreachable_pub)]

mod handles;
mod support;
mod waiting;
mod workers;
