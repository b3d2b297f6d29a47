//! Which code of `net` and `rpc` may take a lock: a list to be looked at whenever it grows, because a small call in steady state takes none.
//!
//! What shows it at work: in `net`, every lock that `mem` ports share is held by another thread while messages go back and forth (see
//! `port/mem/registry.rs`). The other locks on this list belong to one call or one token each, and the reasons here say when they are taken.

use std::collections::BTreeMap;
use std::path::Path;

/// Names of what blocks, or may.
const BLOCKING: [&str; 9] =
    ["Mutex", "RwLock", "Condvar", "OnceLock", "LazyLock", "Barrier", "mpsc", "parking_lot", "thread::park"];

/// Each file that has one, and when it is used.
const KNOWN: [(&str, &str); 6] = [
    ("net/src/port/mem/registry.rs", "when a port opens or closes, and when a ring is made or taken over: not for packets"),
    ("net/src/sync/crew.rs", "a worker that has found nothing for a while parks; inline handlers have no workers"),
    ("net/src/sync/primitive.rs", "under loom only"),
    (
        "rpc/src/cancel.rs",
        "when something is registered with a token, or the token fires; an inline handler that asks for none has none",
    ),
    ("rpc/src/handle.rs", "the slot of a call made from another thread, which only its caller and its node know"),
    ("rpc/src/server.rs", "a number drawn once in a process, behind one load"),
];

/// The code of a file: without comments, and without the tests at its end.
fn code(text: &str) -> String {
    let ends = text.find("#[cfg(test)]\nmod ").or_else(|| text.find("#[cfg(all(test"));
    let body = &text[..ends.unwrap_or(text.len())];
    body.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn search(root: &Path, folder: &str, found: &mut BTreeMap<String, Vec<&'static str>>) {
    let entries = std::fs::read_dir(root.join(folder)).unwrap();
    for entry in entries.map(Result::unwrap) {
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            search(root, &path, found);
        } else if path.ends_with(".rs") && !path.ends_with("/tests.rs") {
            let code = code(&std::fs::read_to_string(entry.path()).unwrap());
            let blocking: Vec<_> = BLOCKING.into_iter().filter(|name| code.contains(name)).collect();
            if !blocking.is_empty() {
                found.insert(path, blocking);
            }
        }
    }
}

#[test]
fn code_after_a_function_for_tests_is_searched_and_tests_are_not() {
    let text = "a\n#[cfg(test)]\nfn b() {}\nMutex\n    // RwLock\n#[cfg(test)]\nmod tests {\n    Condvar\n}\n";
    assert_eq!(code(text), "a\n#[cfg(test)]\nfn b() {}\nMutex");
}

#[test]
fn what_may_take_a_lock_is_known() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = BTreeMap::new();
    search(root, "net/src", &mut found);
    search(root, "rpc/src", &mut found);
    let known: BTreeMap<_, _> = KNOWN.into_iter().collect();
    for (file, names) in &found {
        assert!(known.contains_key(file.as_str()), "{file} uses {names:?}: no call in steady state may; say here when it does");
    }
    for file in known.keys() {
        assert!(found.contains_key(*file), "{file} takes no lock any more: take it off the list");
    }
}
