//! Counts a program's instructions with valgrind's callgrind: exact where hardware counters are not to be had.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::BenchError;

const INSTALL: &str = "install valgrind (on Debian: apt-get install valgrind), then run this again";

/// Whether valgrind can be run, and which version it says it is.
pub fn version() -> Result<String, BenchError> {
    let missing = |why: String| BenchError::Tool { why: format!("counting instructions needs valgrind, {why}"), remedy: INSTALL };
    let output = Command::new("valgrind").arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| missing(format!("which can't be run ({error})")))?;
    if !output.status.success() {
        return Err(missing(format!("which ended with {}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs this program with `args` under callgrind and gives the instructions that all its threads executed. The profile goes to
/// `profile`, if somebody wants it.
pub fn count(args: &[String], profile: Option<&Path>) -> Result<u64, BenchError> {
    let program = std::env::current_exe().map_err(BenchError::system("asking for this program's path"))?;
    let nowhere = Path::new("/dev/null");
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(profile.unwrap_or(nowhere));
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(out)
        .arg(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(BenchError::system("running valgrind"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let ended = |why: String| BenchError::PartnerEnded { what: "program under valgrind", why };
    if !output.status.success() {
        let last = said.lines().rev().find(|line| !line.starts_with("==")).unwrap_or("it said nothing");
        return Err(ended(format!("{}: {last}", output.status)));
    }
    collected(&said).ok_or_else(|| ended("valgrind did not say how many instructions it counted".to_owned()))
}

/// The sum in callgrind's last words: `==7== Collected : 123456`.
fn collected(said: &str) -> Option<u64> {
    said.lines().rev().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_what_callgrind_says_last() {
        let said = "==7== Callgrind, a profiler\n==7== \n==7== Events    : Ir\n==7== Collected : 1234567\n==7== \n==7== I refs: 1,234,567\n";
        assert_eq!(collected(said), Some(1_234_567));
        assert_eq!(collected("==7== Collected : no\n"), None);
    }
}
