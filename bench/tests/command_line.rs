//! The program as its user meets it: what it says and ends with where it can't do what was asked.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tautline_bench::pin::{allowed, pin};

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tautline-bench"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Exit code, standard output, standard error.
fn said(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The same on one core: a program has the cores of the thread that starts it.
fn said_on_one_core(arguments: &[&str]) -> (Option<i32>, String, String) {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            pin(allowed().unwrap()[0]).unwrap();
            bench(arguments).output().unwrap()
        });
        said(run.join().unwrap())
    })
}

/// A name in the directory of temporary files that no other run of these tests has.
fn temporary(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("tautline-bench-{}-{name}", std::process::id()))
}

#[test]
fn without_a_command_it_says_so_and_how_it_is_used() {
    let (code, out, err) = said(bench(&[]).output().unwrap());
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.starts_with("tautline-bench: the command is missing: write one of floor,"), "{err}");
    assert!(err.contains("\nUsage: tautline-bench COMMAND"), "{err}");
}

#[test]
fn help_is_what_was_asked_for() {
    for arguments in [&["--help"][..], &["help"], &["all", "--help"], &["help", "soak"]] {
        let (code, out, err) = said(bench(arguments).output().unwrap());
        assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(out.contains("Usage: tautline-bench"), "{arguments:?}: {out}");
    }
}

#[test]
fn all_that_could_measure_nothing_fails_and_writes_no_page() {
    let page = temporary("nothing.html");
    let arguments = ["all", "--quick", "--only", "floor,echo", "--out", page.to_str().unwrap()];
    let (code, out, err) = said_on_one_core(&arguments);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.contains("tautline-bench echo --port mem: could not be measured: this benchmark needs two cores"), "{err}");
    assert!(err.contains("tautline-bench: none of the 3 could be measured") && err.contains("of floor it was said"), "{err}");
    assert!(!page.exists());
}

#[test]
fn a_page_that_cannot_be_written_is_named_before_anything_is_measured() {
    let directory = std::env::temp_dir();
    for page in ["/nowhere/to/be/found.html", directory.to_str().unwrap(), "/proc/page.html"] {
        let (code, out, err) = said(bench(&["all", "--quick", "--only", "floor", "--out", page]).output().unwrap());
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.starts_with(&format!("tautline-bench: {page}: the page can't be written there: ")), "{err}");
        assert_eq!(err.lines().count(), 1, "it measured first: {err}");
    }
}

#[test]
fn a_page_that_is_there_stays_where_nothing_is_measured() {
    let page = temporary("kept.html");
    std::fs::write(&page, "before").unwrap();
    let (code, ..) = said_on_one_core(&["all", "--only", "floor", "--out", page.to_str().unwrap()]);
    let kept = std::fs::read_to_string(&page);
    std::fs::remove_file(&page).unwrap();
    assert_eq!((code, kept.unwrap().as_str()), (Some(2), "before"));
}

#[test]
fn an_interrupted_soak_sums_up_what_ran() {
    let mut soak = bench(&["soak", "--seconds", "100000", "--interval", "1", "--seed", "1"]);
    // A group of its own, as a shell gives it one: Ctrl-C is for all processes in it.
    let mut soak = soak.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(soak.stdout.take().unwrap());
    let mut out = String::new();
    // The first rest: there was traffic before it.
    while !out.contains("client 2 ") {
        assert!(lines.read_line(&mut out).unwrap() > 0, "it ended: {out}");
    }
    // Twice at once, as `timeout` does.
    kill_process_group(Pid::from_child(&soak), Signal::INT).unwrap();
    let _ = kill_process_group(Pid::from_child(&soak), Signal::INT);
    lines.read_to_string(&mut out).unwrap();
    let (code, _, err) = said(soak.wait_with_output().unwrap());
    assert!(out.contains("Calls by how they ended:") && out.contains("Processes: "), "{out}{err}");
    assert!(!out.contains("told to stop"), "the signal reached its processes too: {out}");
    // A machine that is too busy for this build to come to rest in time is not what is tested.
    if code != Some(1) {
        assert_eq!(code, Some(130), "{out}{err}");
        assert!(out.contains("soak: no leak; ") && err.contains("of 100000 s of traffic: nothing leaked until then"), "{out}{err}");
    }
}
