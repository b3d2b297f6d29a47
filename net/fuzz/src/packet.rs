//! Target `packet`: the parsers of the packet format, on any bytes. What is read is what the bytes say, and says the same when written.

use tautline_net::wire::{Acknowledgement, Fragment, Header, Hello, Item, Kind, Refusal, VERSION, Welcome, expand_number};

/// Parses `data` as every kind of packet.
pub fn run(data: &[u8]) {
    let verified = Header::verify(data);
    if let Ok((header, kind)) = Header::parse(data) {
        assert_eq!((header.version, header.kind), (VERSION, kind as u8));
        let mut again = data.to_vec();
        header.emit(&mut again);
        assert_eq!(again, data, "a header says another thing when it is written");
        // A sealed packet verifies; sealing one that verified changes nothing.
        Header::seal(&mut again);
        assert_eq!(Header::verify(&again), Ok(()));
        assert_eq!(again == data, verified.is_ok());
        near(header);
        body(kind, data);
    }
}

fn near(header: &Header) {
    let near = header.ack_bits.get() >> 1;
    let number = expand_number(header.number.get(), near);
    assert_eq!(number as u32, header.number.get());
    // The nearest: within half the range, unless that would be below zero.
    assert!(number.abs_diff(near) <= 1 << 31 || number == u64::from(header.number.get()));
}

fn body(kind: Kind, data: &[u8]) {
    let mut again = data.to_vec();
    match kind {
        Kind::Hello => {
            let Ok(hello) = Hello::parse(data) else { return };
            hello.emit(&mut again);
            assert!(hello.parameters.mtu.get() >= 256 && hello.parameters.slots.get() > 0);
        }
        Kind::Challenge | Kind::Welcome => {
            let Ok(welcome) = Welcome::parse(data) else { return };
            welcome.emit(&mut again);
            assert!(welcome.checked_parameters().is_err() || welcome.parameters.max_message.get() > 0);
        }
        Kind::Refuse => {
            let Ok(refusal) = Refusal::parse(data) else { return };
            refusal.emit(&mut again);
            assert!(refusal.reason().is_none_or(|reason| reason as u8 == refusal.reason));
        }
        Kind::Data => {
            let Ok((fragment, payload)) = Fragment::parse(data) else { return };
            fragment.emit(&mut again);
            assert_eq!(payload.len(), data.len() - Header::LEN - Fragment::LEN);
        }
        Kind::Control => {
            let Ok(items) = Item::parse(data) else { return };
            assert!(!items.is_empty() && items.len() * Item::LEN == data.len() - Header::LEN);
            for item in items {
                assert!(item.kind().is_none_or(|kind| kind as u8 == item.kind));
            }
        }
        Kind::Acks => {
            let Ok(list) = Acknowledgement::parse(data) else { return };
            assert!(!list.is_empty() && list.len() * Acknowledgement::LEN == data.len() - Header::LEN);
            for (at, one) in list.iter().enumerate() {
                one.emit(&mut again[Header::LEN + at * Acknowledgement::LEN..]);
            }
        }
        Kind::Reset | Kind::Ack => {}
    }
    assert_eq!(again, data, "a body says another thing when it is written");
}
