//! Keeps cores from halting while threads on them sleep and are woken.
//!
//! A core that halts in a virtual machine takes tens to hundreds of microseconds to come back, as long as the host pleases; a measurement
//! of a path with wake-ups would measure that. So a process that does nothing spins on each core in the scheduler's idle class: it
//! gives way at once to any thread that has something to do. Entering that class needs no privileges, but a system call that this crate
//! makes by way of `chrt` (util-linux); without it, or if the program is missing, the cores may halt, and the report says so.

use std::hint::spin_loop;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::BenchError;
use crate::pin::{Cores, pin};

/// The name of the hidden command that a process started by [`KeepAwake`] runs.
pub const COMMAND: &str = "keep-awake";

/// Processes that spin until this is dropped.
#[derive(Debug)]
pub struct KeepAwake(Vec<Child>);

impl KeepAwake {
    /// Keeps both cores awake; `None` if `chrt` can't be run.
    pub fn start(cores: Cores) -> Option<KeepAwake> {
        let program = std::env::current_exe().ok()?;
        let mut awake = KeepAwake(Vec::new());
        for core in [cores.client, cores.server] {
            let child = Command::new("chrt")
                .args(["--idle", "0"])
                .arg(&program)
                .args([COMMAND, "--core", &core.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            awake.0.push(child.ok()?);
        }
        // One that could not enter the class, or did not start, has ended soon.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let running = awake.0.iter_mut().all(|child| matches!(child.try_wait(), Ok(None)));
        running.then_some(awake)
    }
}

impl Drop for KeepAwake {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Fails only for one that has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What the process does: spins on `core` until its standard input ends, so that it never outlives who started it.
pub fn spin(core: usize) -> Result<(), BenchError> {
    static OVER: AtomicBool = AtomicBool::new(false);
    pin(core)?;
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(|| {
            let mut nothing = [0];
            while matches!(std::io::stdin().read(&mut nothing), Ok(1..)) {}
            OVER.store(true, Ordering::Relaxed);
        })
        .map_err(BenchError::system("starting a thread"))?;
    while !OVER.load(Ordering::Relaxed) {
        spin_loop();
    }
    Ok(())
}
