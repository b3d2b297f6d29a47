//! Target `tie`: the parsers of tie headers and of the messages between servers, on any bytes. What is read is sensible, and there is
//! one way only to write it.

use tautline_tied::header::{Control, MAX_CONTROL, MAX_COPIES, MAX_HEADER, TieHeader, canonical, same_place};

/// Parses `data` as a header and as a message.
pub fn run(data: &[u8]) {
    if let Ok(header) = TieHeader::parse(data) {
        assert!((2..=MAX_COPIES).contains(&header.copies.len()) && usize::from(header.rank) < header.copies.len());
        for (at, address) in header.copies.iter().enumerate() {
            assert!(!header.copies[..at].contains(address), "a server twice");
            assert!(same_place(&canonical(address), address), "an address is not where its canonical form is");
        }
        let bytes = header.emit();
        assert!(bytes.len() <= MAX_HEADER);
        assert_eq!(&bytes[..], data, "a header is written differently");
    }
    if let Ok(control) = Control::parse(data) {
        let bytes = control.emit();
        assert!(bytes.len() <= MAX_CONTROL);
        // The three reserved bytes may say anything, and are not repeated.
        assert_eq!(bytes.len(), data.len());
        assert!(bytes[..5] == data[..5] && bytes[8..] == data[8..], "a message is written differently");
        assert_eq!(Control::parse(&bytes), Ok(control));
    }
}
