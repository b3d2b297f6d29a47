//! A small call over `mem` makes no system call in steady state, in either node, on one thread or on two: counted by strace. (Of locks
//! it shows little: a short one is seldom waited for in the kernel. See `locks.rs` for those.)
//!
//! `scripts/test system-calls` runs it, and installs strace where it can.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tautline_rpc::{CallOptions, EndpointConfig, Method, Node, NodeConfig, Service, Wait};

const ECHO: Method = Method::named("system_calls.Test/Echo");
const BODY: [u8; 32] = [7; 32];
const WINDOW: usize = 64;

/// Calls of the two runs. The first is past everything that happens at the start.
const CALLS: [usize; 2] = [5_000, 55_000];
/// What the second may make more than the first: threads of the test program start and end as they like.
const NOISE: i64 = 50;

/// The load in the program that strace runs: where the server is, and how many calls.
const LOAD: &str = "TAUTLINE_SYSTEM_CALLS_LOAD";

fn node(name: &str) -> Node {
    // Whatever else the machine does meanwhile, nobody is declared dead.
    let endpoint = EndpointConfig { peer_timeout: Duration::from_secs(600), ..EndpointConfig::default() };
    let config = NodeConfig { endpoint, ..NodeConfig::default() };
    Node::builder(format!("mem://system-calls-{name}")).wait(Wait::Spin).config(config).build().unwrap()
}

fn server() -> Node {
    let mut server = node("server");
    server.serve(ECHO, Service::inline(|request| Ok(request.take_payload().into()))).unwrap();
    server
}

/// Makes `count` calls, a window of them outstanding; `turn` is called in every turn.
fn calls(client: &mut Node, count: usize, mut turn: impl FnMut()) {
    let local = client.local();
    let peer = local.peer("mem://system-calls-server").unwrap();
    let options = CallOptions::new();
    let (mut sent, mut ended) = (0, 0);
    while ended < count {
        while sent < count && sent - ended < WINDOW {
            local.submit(peer, ECHO, &BODY, &options, 0).unwrap();
            sent += 1;
        }
        client.poll();
        turn();
        while let Some(completion) = client.next_completion() {
            assert_eq!(&*completion.result.unwrap(), &BODY);
            ended += 1;
        }
    }
}

#[test]
#[ignore = "the program that the others run under strace"]
fn load() {
    let Ok(load) = std::env::var(LOAD) else { return };
    let (place, count) = load.split_once(' ').unwrap();
    let (mut client, count) = (node("client"), count.parse().unwrap());
    if place == "one" {
        let mut server = server();
        return calls(&mut client, count, || _ = server.poll());
    }
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut server = server();
        tell.send(server.handle()).unwrap();
        server.run();
    });
    let server = told.recv().unwrap();
    calls(&mut client, count, || ());
    server.stop();
    thread.join().unwrap();
}

/// The system calls that a run of [`load`] makes, by name.
fn count(place: &str, calls: usize) -> BTreeMap<String, i64> {
    let out = tempfile(place, calls);
    let program = std::env::current_exe().unwrap();
    let ran = Command::new("strace")
        .args(["-f", "-c", "-o"])
        .arg(&out)
        .arg(program)
        .args(["--exact", "load", "--ignored", "--test-threads=1"])
        .env(LOAD, format!("{place} {calls}"))
        .output()
        .unwrap_or_else(|error| panic!("strace can't be run ({error}): install it, or run `scripts/test system-calls`"));
    let table = std::fs::read_to_string(&out).unwrap_or_default();
    let _ = std::fs::remove_file(&out);
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    let counts = parse(&table);
    assert!(counts.get("execve") == Some(&1), "strace counted nothing:\n{table}");
    counts
}

fn tempfile(place: &str, calls: usize) -> std::path::PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("system-calls-{place}-{calls}-{}", std::process::id()))
}

/// Lines like ` 12.50    0.000010           1         8         2 openat`: the fourth column is the count, errors may be missing.
fn parse(table: &str) -> BTreeMap<String, i64> {
    let row = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let name = columns.last().filter(|name| **name != "total")?;
        Some(((*name).to_owned(), columns.get(3)?.parse().ok()?))
    };
    table.lines().filter_map(row).collect()
}

/// Asserts that fifty thousand calls more make no system calls more.
fn check(place: &str) {
    let [few, many] = CALLS.map(|calls| count(place, calls));
    let growth = |name: &str| many.get(name).unwrap_or(&0) - few.get(name).unwrap_or(&0);
    let grown: Vec<(&str, i64)> =
        many.keys().map(|name| (name.as_str(), growth(name))).filter(|(_, growth)| *growth != 0).collect();
    println!("{place}: {} calls more made these system calls more: {grown:?}", CALLS[1] - CALLS[0]);
    let total: i64 = grown.iter().map(|(_, growth)| growth.max(&0)).sum();
    assert!(total <= NOISE, "{} calls more made {total} system calls more: {grown:?}", CALLS[1] - CALLS[0]);
}

#[test]
#[ignore = "needs strace: scripts/test system-calls"]
fn small_calls_between_two_nodes_on_one_thread_make_no_system_calls() {
    check("one");
}

#[test]
#[ignore = "needs strace: scripts/test system-calls"]
fn small_calls_between_two_threads_make_no_system_calls() {
    check("two");
}

#[test]
fn straces_table_is_read_by_its_columns() {
    let table = "% time     seconds  usecs/call     calls    errors syscall\n------ ----------- ----------- --------- --------- ----------------\n 60.00    0.000010           1         8         2 openat\n 40.00    0.000004           4         1           execve\n------ ----------- ----------- --------- --------- ----------------\n100.00    0.000014           1         9         2 total\n";
    assert_eq!(parse(table), BTreeMap::from([("openat".to_owned(), 8), ("execve".to_owned(), 1)]));
}
