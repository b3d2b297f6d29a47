//! Running a target on inputs that lie in files.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use arbitrary::{Arbitrary, Unstructured};

/// Whether what an input stands for is printed.
static SHOWN: AtomicBool = AtomicBool::new(false);

/// Prints a step of an input, where a person runs it.
pub fn show(step: &impl std::fmt::Debug) {
    if SHOWN.load(Ordering::Relaxed) {
        println!("    {step:?}");
    }
}

/// Takes up to `most` steps out of `input`, until it is used up or stands for no step.
pub fn steps<'a, S: Arbitrary<'a> + std::fmt::Debug>(input: &mut Unstructured<'a>, most: usize, mut take: impl FnMut(S)) {
    for _ in 0..most {
        match S::arbitrary(input) {
            Ok(step) if !input.is_empty() => {
                show(&step);
                take(step);
            }
            _ => break,
        }
    }
}

/// Runs what is kept for a target in the crate at `root`: every file in `corpus/TARGET` and `regressions/TARGET`. A file that fails is
/// named.
///
/// # Panics
///
/// If an input fails, or none is kept.
pub fn kept(root: &str, target: &str, run: impl Fn(&[u8])) {
    let folders = ["corpus", "regressions"].map(|folder| Path::new(root).join(folder).join(target));
    let files: Vec<PathBuf> = folders.iter().flat_map(|folder| files(folder)).collect();
    assert!(!files.is_empty(), "no inputs are kept for {target}");
    files.iter().for_each(|file| one(file, &run));
}

/// Runs the files that the program's arguments name, and the files in folders that they name. Of a file that is named itself, it prints
/// the steps.
///
/// # Panics
///
/// If an input fails, or can't be read.
pub fn arguments(run: impl Fn(&[u8])) {
    let named: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if named.is_empty() {
        eprintln!("name inputs to run, or folders of them; to look for new ones use scripts/fuzz");
        std::process::exit(2);
    }
    for path in named {
        SHOWN.store(path.is_file(), Ordering::Relaxed);
        let files = if path.is_dir() { files(&path) } else { vec![path] };
        files.iter().for_each(|file| one(file, &run));
        println!("{} inputs ran", files.len());
    }
}

fn one(file: &Path, run: &impl Fn(&[u8])) {
    let input = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    if let Err(cause) = catch_unwind(AssertUnwindSafe(|| run(&input))) {
        eprintln!("the input that failed is {}", file.display());
        resume_unwind(cause);
    }
}

/// The files in a folder, in order of their names; none if it is not there.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect();
    files.sort();
    files
}
