//! An external sort that a replica does beside its reads, a step at a time: what compaction is to a real store.
//!
//! Three replicas on one machine share its disk and its processors, so a sort beside them slows all three at the same moments, and then no
//! other replica is better to ask. Replicas on three machines are slow at different moments. Here a replica's workers
//! stand for its machine: the sort's steps go through them, as work of the lowest class, and a step holds a worker for as long as its
//! file work and sorting take.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Keys of a run: what is sorted in memory at once. 2 MiB, some milliseconds.
const RUN: usize = 1 << 18;
/// Runs: how many files the merge reads.
const RUNS: usize = 32;
const KEY: usize = size_of::<u64>();

/// A sort under way. It starts over when it is done.
#[derive(Debug)]
pub(crate) struct External {
    dir: PathBuf,
    random: fastrand::Rng,
    /// Keys of a run.
    run: usize,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Writes and sorts run after run.
    Runs { next: usize },
    /// Merges them.
    Merge(Box<Merge>),
}

#[derive(Debug)]
struct Merge {
    inputs: Vec<BufReader<File>>,
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    output: BufWriter<File>,
    last: u64,
}

impl External {
    /// A sort with its files below `dir`, in a directory that is removed when this is dropped.
    pub(crate) fn start(dir: &Path, seed: u64) -> io::Result<External> {
        External::of_size(dir, seed, RUN)
    }

    fn of_size(dir: &Path, seed: u64, run: usize) -> io::Result<External> {
        let dir = dir.join(format!("external-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        Ok(External { dir, random: fastrand::Rng::with_seed(seed), run, phase: Phase::Runs { next: 0 } })
    }

    /// One step: some milliseconds of work. `true` if it was the last one, and the next begins again.
    pub(crate) fn step(&mut self) -> io::Result<bool> {
        match &mut self.phase {
            Phase::Runs { next } if *next < RUNS => {
                let path = self.dir.join(format!("run-{next}"));
                *next += 1;
                write_run(&path, &mut self.random, self.run)?;
                Ok(false)
            }
            Phase::Runs { .. } => {
                self.phase = Phase::Merge(Box::new(Merge::open(&self.dir)?));
                Ok(false)
            }
            Phase::Merge(merge) => {
                let done = merge.advance(self.run / 2)?;
                if done {
                    self.phase = Phase::Runs { next: 0 };
                }
                Ok(done)
            }
        }
    }
}

impl Drop for External {
    fn drop(&mut self) {
        // It is named after this process; nothing better can be done about a failure here.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Writes unsorted keys, reads them back, sorts them in memory, and writes them in order.
fn write_run(path: &Path, random: &mut fastrand::Rng, keys: usize) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    let mut bytes = vec![0; keys * KEY];
    random.fill(&mut bytes);
    file.write_all_at(&bytes, 0)?;
    file.read_exact_at(&mut bytes, 0)?;
    let mut keys: Vec<u64> = bytes.as_chunks().0.iter().map(|key| u64::from_le_bytes(*key)).collect();
    keys.sort_unstable();
    for (place, key) in bytes.as_chunks_mut().0.iter_mut().zip(&keys) {
        *place = key.to_le_bytes();
    }
    file.write_all_at(&bytes, 0)
}

impl Merge {
    fn open(dir: &Path) -> io::Result<Merge> {
        let mut inputs = Vec::with_capacity(RUNS);
        for run in 0..RUNS {
            inputs.push(BufReader::with_capacity(64 * 1024, File::open(dir.join(format!("run-{run}")))?));
        }
        let output = BufWriter::with_capacity(1 << 20, File::create(dir.join("sorted"))?);
        let mut merge = Merge { inputs, heads: BinaryHeap::with_capacity(RUNS), output, last: 0 };
        for run in 0..RUNS {
            merge.refill(run)?;
        }
        Ok(merge)
    }

    /// Writes up to `count` keys; `true` when all are written.
    fn advance(&mut self, count: usize) -> io::Result<bool> {
        for _ in 0..count {
            let Some(Reverse((key, run))) = self.heads.pop() else {
                self.output.flush()?;
                return Ok(true);
            };
            if key < self.last {
                return Err(io::Error::other("the sort's runs are not in order"));
            }
            self.last = key;
            self.output.write_all(&key.to_le_bytes())?;
            self.refill(run)?;
        }
        Ok(false)
    }

    fn refill(&mut self, run: usize) -> io::Result<()> {
        let mut key = [0; KEY];
        match self.inputs[run].read_exact(&mut key) {
            Ok(()) => self.heads.push(Reverse((u64::from_le_bytes(key), run))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_come_out_in_order_and_the_sort_starts_over() {
        let dir = tempfile::tempdir().unwrap();
        let mut sort = External::of_size(dir.path(), 5, 100).unwrap();
        let last = (1..).find(|_| sort.step().unwrap()).unwrap();
        assert!(last > RUNS, "{last} steps");
        let sorted = fs::read(sort.dir.join("sorted")).unwrap();
        let keys: Vec<u64> = sorted.as_chunks().0.iter().map(|key| u64::from_le_bytes(*key)).collect();
        assert_eq!(keys.len(), 100 * RUNS);
        assert!(keys.is_sorted());
        sort.step().unwrap();
        drop(sort);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
