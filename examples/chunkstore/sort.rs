//! The interference: real external sorts on the disk that the replicas read from, as in the paper's Table 2.
//!
//! Each is the system's `sort` with little memory, so that it spills runs to disk and merges them; it is started again
//! whenever it ends, until the [`Sorts`] are dropped. It runs at the lowest CPU priority: three replicas and a client share a few cores here, and
//! a fight for those would hit every replica alike, unlike one for the disk.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Memory for one sort: small, so that it works on disk.
const MEMORY: &str = "32M";
/// A line of its input, after the key, and the bytes of both.
const RECORD: &[u8] = b" a record that has to be sorted\n";
const LINE: usize = 16 + RECORD.len();

/// Sorts that run until this is dropped.
#[derive(Debug)]
pub(crate) struct Sorts {
    dir: PathBuf,
    stop: Arc<AtomicBool>,
    finished: Arc<AtomicU64>,
    runners: Vec<Runner>,
}

/// The thread that keeps one sort going, and the process that it is in.
#[derive(Debug)]
struct Runner {
    child: Arc<Mutex<Option<Child>>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Sorts {
    /// Starts `count` sorts over an input of `bytes`, which is written below `dir` unless it is there already.
    pub(crate) fn start(dir: &Path, count: usize, bytes: u64) -> io::Result<Sorts> {
        let dir = dir.join(format!("sort-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let mut sorts = Sorts { dir, stop: Arc::default(), finished: Arc::default(), runners: Vec::new() };
        // From here on, an early return cleans up what was begun.
        let input = sorts.input(bytes)?;
        for number in 0..count {
            let work = sorts.dir.join(number.to_string());
            fs::create_dir_all(&work)?;
            let child: Arc<Mutex<Option<Child>>> = Arc::default();
            let thread = {
                let (input, child) = (input.clone(), Arc::clone(&child));
                let (stop, finished) = (Arc::clone(&sorts.stop), Arc::clone(&sorts.finished));
                std::thread::Builder::new()
                    .name(format!("sort-{number}"))
                    .spawn(move || keep_sorting(&input, &work, &child, &stop, &finished))?
            };
            sorts.runners.push(Runner { child, thread });
        }
        Ok(sorts)
    }

    /// The input, left beside this one's own directory for the next run.
    fn input(&self, bytes: u64) -> io::Result<PathBuf> {
        let (ready, draft) = (self.dir.with_file_name("sort-input"), self.dir.join("input"));
        let lines = bytes / LINE as u64;
        if fs::metadata(&ready).is_ok_and(|metadata| metadata.len() == lines * LINE as u64) {
            return Ok(ready);
        }
        write_input(&draft, lines)?;
        fs::rename(&draft, &ready)?;
        Ok(ready)
    }

    /// How many sorts have been completed.
    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    /// The error of a sort that could not go on, if one could not.
    pub(crate) fn failure(&mut self) -> Option<io::Error> {
        let ended = self.runners.iter().position(|runner| runner.thread.is_finished())?;
        match self.runners.swap_remove(ended).thread.join() {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(io::Error::other("the thread that runs `sort` panicked")),
        }
    }
}

impl Drop for Sorts {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for Runner { child, thread } in self.runners.drain(..) {
            if let Some(child) = child.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                // It may have ended by itself just now.
                let _ = child.kill();
            }
            let _ = thread.join();
        }
        // What is left is in a directory named after this process; nothing better can be done about a failure here.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn keep_sorting(input: &Path, work: &Path, slot: &Mutex<Option<Child>>, stop: &AtomicBool, finished: &AtomicU64) -> io::Result<()> {
    let lock = || slot.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        {
            // Under the lock, so that a stop finds either no child or the one to kill.
            let mut slot = lock();
            if stop.load(Ordering::SeqCst) {
                return Ok(());
            }
            *slot = Some(start_sort(input, work)?);
        }
        let status = loop {
            if let Some(status) = lock().as_mut().map(Child::try_wait).transpose()?.flatten() {
                break status;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        if stop.load(Ordering::SeqCst) {
            return Ok(());
        }
        if !status.success() {
            return Err(io::Error::other(format!("`sort` ended with {status}: is the disk under {} full?", work.display())));
        }
        finished.fetch_add(1, Ordering::Relaxed);
    }
}

fn start_sort(input: &Path, work: &Path) -> io::Result<Child> {
    Command::new("nice")
        .env("LC_ALL", "C")
        .args(["-n", "19", "sort", "-S", MEMORY, "--parallel=1", "-T"])
        .arg(work)
        .arg("-o")
        .arg(work.join("output"))
        .arg(input)
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("starting `nice sort` (coreutils) failed: {error}")))
}

fn write_input(path: &Path, lines: u64) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..lines {
        let key: [u8; 16] = std::array::from_fn(|_| random.lowercase() as u8);
        file.write_all(&key)?;
        file.write_all(RECORD)?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn sorts_start_again_when_they_end_and_leave_only_their_input_behind() {
        let dir = tempfile::tempdir().unwrap();
        let mut sorts = Sorts::start(dir.path(), 2, 40 * LINE as u64).unwrap();
        while sorts.finished() < 3 {
            assert!(sorts.failure().is_none());
            std::thread::yield_now();
        }
        drop(sorts);
        assert_eq!(left(dir.path()), ["sort-input"]);
    }

    #[test]
    fn a_running_sort_is_ended_by_the_drop() {
        let dir = tempfile::tempdir().unwrap();
        let sorts = Sorts::start(dir.path(), 1, 4 << 20).unwrap();
        drop(sorts);
        assert_eq!(left(dir.path()), ["sort-input"]);
    }
}
