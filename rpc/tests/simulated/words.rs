//! Words that a hook leaves with requests: what is sent when one starts, and what takes one out of the queue.

use std::collections::HashMap;
use std::time::Duration;

use tautline_rpc::*;

use crate::hooks::{MS, TAG, with};
use crate::world::*;

/// Leaves with each request the words that its extension asks for, and logs what it sees.
#[derive(Default)]
struct Leaver {
    log: Log,
    entries: HashMap<String, Entry>,
    names: HashMap<Entry, String>,
    /// It does not ask what a word did.
    incurious: bool,
}

/// The word of this name: the name, room for the time, and something behind that.
fn word(name: &str) -> Vec<u8> {
    [format!("{name:<24}").as_bytes(), &[0; 8], b"behind"].concat()
}

impl Leaver {
    fn say(&self, text: String) {
        self.log.borrow_mut().push(text);
    }
}

impl Hook for Leaver {
    /// An extension is `name`, then any of ` tell ADDRESS`, ` heed ADDRESS`, ` nobody`, ` last`.
    fn admit(&mut self, entry: Entry, extension: &[u8], _: Origin, cx: &mut HookContext<'_>) -> Admit {
        let text = String::from_utf8_lossy(extension).into_owned();
        let mut parts = text.split(' ');
        let name = parts.next().unwrap().to_owned();
        let bytes = word(&name);
        let word = Word { bytes: &bytes, time_at: 24 };
        let mut admit = Admit::Run;
        while let Some(part) = parts.next() {
            let taken = match part {
                "tell" => cx.tell_when_started(entry, parts.next().unwrap().to_address().unwrap(), &word),
                "heed" => cx.drop_when_told(entry, parts.next().unwrap().to_address().unwrap(), &word),
                "nobody" => {
                    cx.tell_nobody(entry);
                    true
                }
                _ => {
                    admit = Admit::Cancel(Status::new(Code::Aborted, "refused"));
                    true
                }
            };
            assert!(taken, "{part} of {text}");
        }
        self.entries.insert(name.clone(), entry);
        self.names.insert(entry, name);
        admit
    }

    fn started(&mut self, entry: Entry, at: Time, cx: &mut HookContext<'_>) {
        self.say(format!("started {} at {}, {} untold", self.names[&entry], at.as_nanos(), cx.untold(entry)));
    }

    fn finished(&mut self, entry: Entry, _: Time, _: &mut HookContext<'_>) {
        self.say(format!("finished {}", self.names[&entry]));
    }

    fn control(&mut self, from: Origin, bytes: &[u8], cx: &mut HookContext<'_>) {
        let name = String::from_utf8_lossy(&bytes[..24]).trim().to_owned();
        let time = u64::from_le_bytes(bytes[24..32].try_into().unwrap());
        assert_eq!(&bytes[32..], b"behind");
        let outcome = match self.entries.get(&name) {
            Some(entry) if !self.incurious => match cx.cancel_queued(*entry) {
                QueuedCancel::Dropped { at } => {
                    assert_eq!(at, cx.now());
                    ": dropped"
                }
                QueuedCancel::Started => ": started",
                QueuedCancel::Gone => ": gone",
            },
            _ => "",
        };
        self.say(format!("{name} of {time} by {}{outcome}", from.address));
    }
}

/// A server whose handlers take a millisecond each on its poller, a client, and another node, all with the hook.
struct Bed {
    world: World,
    logs: Vec<Log>,
    ran: Log,
}

const SERVER: usize = 0;
const CLIENT: usize = 1;
const OTHER: usize = 2;

impl Bed {
    fn new(incurious: bool) -> Bed {
        let (mut world, ..) = World::pair(NodeConfig::default());
        world.add(NodeConfig::default());
        let ran = Log::default();
        let (clock, log) = (world.clock.clone(), ran.clone());
        let service = Service::inline(move |request| {
            clock.advance_to(clock.now() + MS);
            log.borrow_mut().push(String::from_utf8_lossy(request.payload()).into_owned());
            Ok(Reply::empty())
        });
        world.node(SERVER).serve(SLOW, service).unwrap();
        let logs = (0..3).map(|number| {
            let leaver = Leaver { incurious, ..Leaver::default() };
            let log = leaver.log.clone();
            world.node(number).hook(TAG, leaver).unwrap();
            world.node(number).serve(ECHO, echo()).unwrap();
            log
        });
        let logs = logs.collect();
        for at in [CLIENT, OTHER] {
            assert!(world.call(at, SERVER, ECHO, "connect", CallOptions::new()).is_ok());
        }
        Bed { world, logs, ran }
    }

    /// A call that waits behind ten others, which are given too.
    fn queued(&mut self, extension: &str) -> (Call, Vec<Call>) {
        let (local, peer) = (self.world.local(CLIENT), self.world.peer(CLIENT, SERVER));
        // By the hook too: what comes without an extension runs where it is received.
        let before = (0..10).map(|_| local.call(peer, SLOW, "before", with("others"))).collect();
        let call = local.call(peer, SLOW, extension.to_owned(), with(extension));
        self.world.run(Duration::from_micros(25));
        (call, before)
    }

    fn say(&self, from: usize, word: &[u8]) {
        self.world.local(from).send_control(self.world.peer(from, SERVER), TAG, word).unwrap();
    }

    fn log(&self, of: usize, about: &str) -> Vec<String> {
        self.logs[of].borrow().iter().filter(|line| line.contains(about)).cloned().collect()
    }

    fn end(mut self, calls: Vec<Call>) {
        for call in calls {
            self.world.finish(call).unwrap();
        }
        self.world.run(MS);
        self.world.assert_at_rest();
    }
}

#[test]
fn a_word_is_sent_when_its_request_starts_and_has_the_time_of_that() {
    let mut bed = Bed::new(false);
    // To a node that there is a session with, and to one that there is none with.
    let third = bed.world.add(NodeConfig::default());
    bed.world.node(third).hook(TAG, Leaver { log: bed.logs[OTHER].clone(), ..Leaver::default() }).unwrap();
    let (call, before) = bed.queued("a tell sim://n2 tell sim://n3");
    assert!(bed.log(OTHER, "a of").is_empty(), "it waits");
    assert!(bed.world.finish(call).is_ok());
    bed.world.run(MS);
    let started = bed.log(SERVER, "started a");
    let at = started[0].strip_prefix("started a at ").and_then(|rest| rest.strip_suffix(", 0 untold")).unwrap();
    assert_eq!(bed.log(OTHER, "a of"), vec![format!("a of {at} by n0"); 2]);
    bed.end(before);
}

#[test]
fn no_word_is_sent_for_what_does_not_start_or_was_taken_back() {
    let mut bed = Bed::new(false);
    let (dropped, mut calls) = bed.queued("a tell sim://n2");
    let (local, peer) = (bed.world.local(CLIENT), bed.world.peer(CLIENT, SERVER));
    calls.push(local.call(peer, SLOW, "b", with("b tell sim://n2 nobody")));
    let refused = local.call(peer, SLOW, "c", with("c tell sim://n2 heed sim://n2 refuse"));
    bed.world.run(Duration::from_micros(25));
    drop(dropped);
    assert_eq!(bed.world.finish(refused).unwrap_err().fate(), Fate::NotExecuted);
    bed.world.run(20 * MS);
    assert_eq!(bed.log(SERVER, "started b at").len(), 1);
    assert!(bed.log(OTHER, " of ").is_empty(), "{:?}", bed.log(OTHER, ""));
    bed.end(calls);
}

#[test]
fn a_word_that_can_not_be_sent_is_counted_and_the_request_runs() {
    let mut bed = Bed::new(false);
    let (call, before) = bed.queued("a tell udp://127.0.0.1:9 tell sim://n2");
    assert!(bed.world.finish(call).is_ok());
    assert!(bed.log(SERVER, "started a")[0].ends_with(", 1 untold"));
    bed.world.run(MS);
    assert_eq!(bed.log(OTHER, "a of").len(), 1);
    bed.end(before);
}

#[test]
fn the_word_that_a_request_waits_for_takes_it_out_whatever_its_time() {
    let mut bed = Bed::new(false);
    let (call, before) = bed.queued("a heed sim://n1 heed sim://n2");
    let mut said = word("a");
    said[24] = 77;
    bed.say(OTHER, &said);
    assert_eq!(bed.world.finish(call).unwrap_err(), CallError::Cancelled { fate: Fate::NotExecuted });
    bed.say(OTHER, &said);
    bed.world.run(20 * MS);
    let rest = ["finished a", "a of 77 by n2: dropped", "a of 77 by n2: gone"];
    let mut seen = bed.log(SERVER, "finished a");
    seen.extend(bed.log(SERVER, "a of"));
    assert_eq!(seen, rest);
    assert!(!bed.ran.borrow().iter().any(|ran| ran.starts_with('a')));
    bed.end(before);
}

#[test]
fn a_hook_that_does_not_ask_what_a_word_did_has_the_request_ended_all_the_same() {
    let mut bed = Bed::new(true);
    let (call, before) = bed.queued("a heed sim://n2");
    bed.say(OTHER, &word("a"));
    assert_eq!(bed.world.finish(call).unwrap_err(), CallError::Cancelled { fate: Fate::NotExecuted });
    bed.world.run(20 * MS);
    assert_eq!((bed.log(SERVER, "finished a").len(), bed.log(SERVER, "started a at").len()), (1, 0));
    bed.end(before);
}

#[test]
fn a_word_counts_from_whom_it_is_expected_and_as_it_was_said_only() {
    // None of these hooks asks, so that only a word that counts would drop anything.
    let mut bed = Bed::new(true);
    let (call, before) = bed.queued("a heed sim://n2");
    bed.say(CLIENT, &word("a"));
    bed.say(OTHER, &word("b"));
    // Of another hook, which there is none of.
    let (local, peer) = (bed.world.local(OTHER), bed.world.peer(OTHER, SERVER));
    local.send_control(peer, TAG + 1, &word("a")).unwrap();
    assert!(bed.world.finish(call).is_ok());
    assert_eq!(bed.log(SERVER, "started a at").len(), 1);
    // What has started is not touched by its word, and the word of one that is over finds nothing.
    bed.say(OTHER, &word("a"));
    bed.world.run(MS);
    bed.end(before);
}

#[test]
fn words_of_the_wrong_form_and_too_many_are_not_taken() {
    struct Picky;
    impl Hook for Picky {
        fn admit(&mut self, entry: Entry, _: &[u8], _: Origin, cx: &mut HookContext<'_>) -> Admit {
            let to = "sim://n1".to_address().unwrap();
            let mut takes = |bytes: &[u8], time_at| {
                let word = Word { bytes, time_at };
                [cx.tell_when_started(entry, to, &word), cx.drop_when_told(entry, to, &word)]
            };
            assert_eq!(takes(&[0; 40], Word::KEY - 1), [false; 2], "the time is among what tells words apart");
            assert_eq!(takes(&[0; 40], 33), [false; 2], "the time does not fit");
            assert_eq!(takes(&[0; 40], usize::MAX), [false; 2]);
            assert_eq!(takes(&[0; Word::MAX + 1], 24), [false; 2]);
            assert_eq!(takes(&[], 24), [false; 2]);
            for _ in 0..Word::COUNT / 2 {
                assert_eq!(takes(&[0; Word::MAX], Word::MAX - 8), [true; 2]);
            }
            assert_eq!(takes(&[0; 40], 24), [false; 2], "it has as many as it may");
            Admit::Run
        }
        fn started(&mut self, _: Entry, _: Time, _: &mut HookContext<'_>) {}
        fn finished(&mut self, entry: Entry, _: Time, cx: &mut HookContext<'_>) {
            let word = Word { bytes: &[0; 40], time_at: 24 };
            assert!(!cx.drop_when_told(entry, "sim://n1".to_address().unwrap(), &word), "it is over");
        }
        fn control(&mut self, _: Origin, _: &[u8], _: &mut HookContext<'_>) {}
    }
    let (mut world, server, client) = World::pair(NodeConfig::default());
    world.node(server).hook(TAG, Picky).unwrap();
    world.node(server).serve(ECHO, echo()).unwrap();
    for _ in 0..3 {
        assert!(world.call(client, server, ECHO, "x", with("x")).is_ok());
    }
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn requests_that_wait_for_the_same_word_are_each_found_while_they_wait() {
    let mut bed = Bed::new(false);
    let (first, before) = bed.queued("a heed sim://n2");
    let (local, peer) = (bed.world.local(CLIENT), bed.world.peer(CLIENT, SERVER));
    let [second, third] = ["second", "third"].map(|payload| local.call(peer, SLOW, payload, with("a heed sim://n2")));
    bed.world.run(Duration::from_micros(25));
    drop(second);
    bed.world.run(Duration::from_micros(25));
    for _ in 0..2 {
        bed.say(OTHER, &word("a"));
        bed.world.run(MS);
    }
    let errors = [first, third].map(|call| bed.world.finish(call).unwrap_err());
    assert_eq!(errors, [(); 2].map(|()| CallError::Cancelled { fate: Fate::NotExecuted }));
    bed.end(before);
}
