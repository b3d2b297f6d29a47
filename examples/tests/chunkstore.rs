//! The chunk store as its user meets it: processes, over UDP.

use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn chunkstore(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chunkstore"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A store, and three ports for its replicas, of which some run.
struct Store {
    dir: tempfile::TempDir,
    urls: [String; 3],
    running: Vec<Child>,
}

impl Store {
    fn new() -> Store {
        let dir = tempfile::tempdir().unwrap();
        let made = chunkstore(&["make", "--size", "1M", "--dir"]).arg(dir.path()).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        // Held together, so that they differ.
        let ports = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let urls = ports.map(|port| format!("udp://{}", port.local_addr().unwrap()));
        Store { dir, urls, running: Vec::new() }
    }

    fn serve(&mut self, replica: usize) {
        let ready = self.dir.path().join(format!("ready-{replica}"));
        let mut command = chunkstore(&["serve", "--quiet", "--replica", &replica.to_string(), "--replicas", &self.urls.join(",")]);
        command.arg("--dir").arg(self.dir.path()).arg("--ready").arg(&ready);
        self.running.push(command.stderr(Stdio::null()).spawn().unwrap());
        let since = Instant::now();
        while !ready.exists() {
            assert!(since.elapsed() < Duration::from_secs(20), "replica {replica} does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn read(&self, seconds: &str, json: &Path) -> Child {
        let mut command = chunkstore(&["read", "--rate", "50", "--seconds", seconds, "--replicas", &self.urls.join(",")]);
        command.arg("--dir").arg(self.dir.path()).arg("--json").arg(json);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether the run ended with its summary and a result in which the replica at `silent`, and nothing else, is unknown.
fn assert_summary(output: &Output, json: &Path, silent: &str) {
    let said = stderr(output);
    assert!(said.contains("tied, idle: ") && said.contains(" reads in "), "{said}");
    assert!(said.contains(&format!("{silent} did not tell what its disk read")), "{said}");
    assert!(!said.contains("(not sent)"), "no sentence: {said}");
    let result: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert!(output.status.success() && result["errors"] == 0, "a read failed though two replicas live: {result}, {said}");
    assert!(result["reads"].as_u64() > Some(10) && result["p99_ms"].as_f64() > Some(0.0), "{result}");
    assert!(result["disk_reads_beyond"].is_null() && result["silent"][0] == silent, "{result}");
    let table = chunkstore(&["table"]).arg(json).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.lines().nth(2).is_some_and(|row| row.contains('?')), "{table}");
}

#[test]
fn a_replica_that_dies_during_a_run_costs_its_counts_and_no_more() {
    let mut store = Store::new();
    (0..3).for_each(|replica| store.serve(replica));
    let json = store.dir.path().join("result.json");
    let read = store.read("2", &json);
    std::thread::sleep(Duration::from_millis(1500));
    store.running[1].kill().unwrap();
    let output = read.wait_with_output().unwrap();
    assert_summary(&output, &json, &store.urls[1]);
}

#[test]
fn the_replicas_that_are_there_are_read() {
    let mut store = Store::new();
    (1..3).for_each(|replica| store.serve(replica));
    let json = store.dir.path().join("result.json");
    let output = store.read("1", &json).wait_with_output().unwrap();
    assert!(stderr(&output).contains(&format!("{} does not answer", store.urls[0])), "{}", stderr(&output));
    assert_summary(&output, &json, &store.urls[0]);
}

#[test]
fn without_any_replica_there_is_no_run_and_no_result() {
    let store = Store::new();
    let json = store.dir.path().join("result.json");
    let output = store.read("1", &json).wait_with_output().unwrap();
    assert!(!output.status.success() && stderr(&output).contains("no replica answers"), "{}", stderr(&output));
    assert!(!json.exists());
}

#[test]
fn what_a_run_needs_is_checked_before_it() {
    let store = Store::new();
    let since = Instant::now();
    let output = store.read("60", Path::new("/nonexistent/x.json")).wait_with_output().unwrap();
    assert!(stderr(&output).contains("--json /nonexistent/x.json can't be written"), "{}", stderr(&output));
    let twice = [&store.urls[0], &store.urls[0]].map(String::as_str).join(",");
    let output = chunkstore(&["serve", "--replica", "0", "--replicas", &twice, "--dir"]).arg(store.dir.path()).output().unwrap();
    assert!(!output.status.success() && stderr(&output).contains("is in --replicas twice"), "{}", stderr(&output));
    assert!(since.elapsed() < Duration::from_secs(30));
}
