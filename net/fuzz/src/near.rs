//! Values that are almost right. Uniformly random fields are refused by the first check; what breaks code passes that one.

use arbitrary::Arbitrary;

/// A number, by its distance from the one that belongs there. The first variant, which an input of zeros gives, is the right one.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Near {
    /// The right one.
    Right,
    /// A little more.
    More(u8),
    /// A little less.
    Less(u8),
    /// Half the range away, where comparisons modulo 2^32 turn.
    Opposite(i8),
    /// Any.
    Any(u32),
}

impl Near {
    /// The number, near `right`.
    pub fn to(self, right: u32) -> u32 {
        match self {
            Near::Right => right,
            Near::More(by) => right.wrapping_add(u32::from(by)),
            Near::Less(by) => right.wrapping_sub(u32::from(by)),
            Near::Opposite(by) => right.wrapping_add(1 << 31).wrapping_add_signed(i32::from(by)),
            Near::Any(number) => number,
        }
    }
}

/// A length in bytes: mostly small ones.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Length {
    /// Below 256.
    Short(u8),
    /// Below 65,536.
    Medium(u16),
    /// Any.
    Any(u32),
}

impl Length {
    /// The length.
    pub fn bytes(self) -> u32 {
        match self {
            Length::Short(bytes) => u32::from(bytes),
            Length::Medium(bytes) => u32::from(bytes),
            Length::Any(bytes) => bytes,
        }
    }

    /// The length, at most `limit`.
    pub fn within(self, limit: usize) -> usize {
        (self.bytes() as usize).min(limit)
    }
}

/// A span of time, on the scales at which timers are set.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Span {
    /// Up to 16 us.
    Nanos(u16),
    /// Up to 65 ms.
    Micros(u16),
    /// Up to 65 s.
    Millis(u16),
    /// Up to 255 days.
    Days(u8),
}

impl Span {
    /// The span in nanoseconds.
    pub fn nanos(self) -> u64 {
        match self {
            Span::Nanos(nanos) => u64::from(nanos) / 4,
            Span::Micros(micros) => u64::from(micros) * 1_000,
            Span::Millis(millis) => u64::from(millis) * 1_000_000,
            Span::Days(days) => u64::from(days) * 86_400_000_000_000,
        }
    }
}

/// What happens to the bytes of a packet that is sent a second time.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Damage {
    at: u16,
    xor: u8,
    cut: u8,
}

impl Damage {
    /// None.
    pub const NONE: Damage = Damage { at: 0, xor: 0, cut: 0 };

    /// Changes a byte (not if `xor` is 0) and cuts some off the end. Whether that changed anything.
    pub fn to(self, packet: &mut Vec<u8>) -> bool {
        packet.truncate(packet.len() - usize::from(self.cut).min(packet.len()));
        let at = usize::from(self.at);
        if let Some(byte) = packet.get_mut(at) {
            *byte ^= self.xor;
        }
        self.cut > 0 || self.xor > 0 && at < packet.len()
    }
}
