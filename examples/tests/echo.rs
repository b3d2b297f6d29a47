//! The echo program as its user meets it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn echo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_echo"));
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn said(arguments: &[&str]) -> (Output, String, String) {
    let output = echo(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

/// A server, killed at the end.
struct Server {
    child: Child,
    lines: BufReader<std::process::ChildStderr>,
    url: String,
    /// What it said behind the URL.
    hint: String,
}

impl Server {
    fn start(url: &str) -> Server {
        let mut child = echo(&["serve", url]).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let said = line.trim().strip_prefix("listening at ").unwrap_or_else(|| panic!("it said {line}"));
        let (url, hint) = said.split_once(", ").unwrap_or((said, ""));
        Server { child, lines, url: url.to_owned(), hint: hint.to_owned() }
    }

    /// Sends it a signal; its exit code, and what else it said.
    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn help_is_what_was_asked_for_and_a_mistake_is_not() {
    let (output, out, err) = said(&["--help"]);
    assert!(output.status.success() && out.contains("echo call URL TEXT") && err.is_empty(), "{out}{err}");
    for (mistake, sentence) in [
        (&["cal"][..], "there is no command `cal`"),
        (&[], "the command is missing"),
        (&["serve"], "the URL is missing"),
        (&["call", "udp://127.0.0.1:7000"], "the text is missing"),
        (&["call", "udp://127.0.0.1:7000", "two", "words"], "put quotes around"),
    ] {
        let (output, out, err) = said(mistake);
        assert!(output.status.code() == Some(2) && out.is_empty(), "{mistake:?}: {out}{err}");
        assert!(err.contains(sentence) && err.contains("echo --help"), "{mistake:?}: {err}");
    }
}

#[test]
fn a_server_that_is_told_to_stop_counts_and_ends_well() {
    for signal in [Signal::INT, Signal::TERM] {
        let server = Server::start("udp://127.0.0.1:0");
        assert!(said(&["call", &server.url, "hello"]).0.status.success());
        let (code, rest) = server.end(signal);
        assert_eq!((code, rest.as_str()), (Some(0), "stopped: 2 calls were answered, 10 bytes in all\n"));
    }
}

#[test]
fn a_server_at_every_address_says_what_to_call() {
    let server = Server::start("udp://0.0.0.0:0");
    let (_, url) = server.hint.split_once("like ").unwrap_or_else(|| panic!("it said {}", server.hint));
    let (output, out, err) = said(&["call", url, "hello"]);
    assert!(output.status.success(), "{out}{err}");
    // The URL that it listens at is not one to call, and the complaint names the same.
    let (output, _, err) = said(&["call", &server.url, "hello"]);
    assert!(output.status.code() == Some(1) && err.trim().ends_with(url), "{err}");
}

#[test]
fn what_no_other_process_can_reach_is_neither_served_nor_called() {
    for arguments in [&["serve", "mem://echo"][..], &["serve", "sim://echo"], &["call", "mem://echo", "hello"]] {
        let (output, _, err) = said(arguments);
        assert!(output.status.code() == Some(1) && err.contains("exists in one process only"), "{arguments:?}: {err}");
    }
    let (output, _, err) = said(&["call", "udp://127.0.0.1:0", "hello"]);
    assert!(output.status.code() == Some(1) && err.contains("no port to call"), "{err}");
}

#[test]
fn a_server_of_either_family_answers() {
    for url in ["udp://127.0.0.1:0", "udp://[::1]:0"] {
        if url.contains("::1") && std::net::UdpSocket::bind("[::1]:0").is_err() {
            eprintln!("this machine has no IPv6: {url} is not tried");
            continue;
        }
        let server = Server::start(url);
        let (output, out, err) = said(&["call", &server.url, "hello"]);
        assert!(output.status.success() && out.matches("hello (").count() == 2, "{url}: {out}{err}");
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    // Bound, so that nobody else takes the port, and never read.
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("udp://{}", nobody.local_addr().unwrap());
    let (output, _, err) = said(&["call", &url, "hello"]);
    assert!(!output.status.success() && err.contains(&format!("no answer from {url} in 2 s: is the server running?")), "{err}");
}

#[test]
fn options_in_the_name_of_a_peer_are_refused() {
    let (output, _, err) = said(&["call", "udp://127.0.0.1:7000?loss=2", "hello"]);
    assert!(!output.status.success() && err.contains("options belong to"), "{err}");
}

#[test]
fn a_traced_server_prints_its_packets() {
    let mut server = Server::start("udp://127.0.0.1:0?trace=1");
    let (plain, _) = server.url.split_once('?').unwrap();
    assert!(said(&["call", plain, "hello"]).0.status.success());
    let mut line = String::new();
    server.lines.read_line(&mut line).unwrap();
    assert!(line.contains("TRACE") && line.contains("received"), "{line}");
}
