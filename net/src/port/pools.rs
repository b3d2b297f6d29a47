//! The three pools of a port: what it receives into, what data is sent from, and what control packets are sent from.
//!
//! They are apart so that exhaustion of one never stops another: a port whose users hold every receive frame can still send, and
//! one whose data waits for the device can still acknowledge.

use crate::frame::{Frame, Pool, PoolConfig};

use super::{FramesOut, PortError, PortUrl, Purpose};

/// A port's pools.
#[derive(Debug)]
pub(crate) struct Pools {
    /// For received datagrams.
    pub(crate) receive: Pool,
    transmit: Pool,
    control: Pool,
}

impl Pools {
    /// `frames` frames of `frame_size` bytes for receiving, as many for data, and a quarter (at least 32) for control.
    pub(crate) fn new(frames: usize, frame_size: usize) -> Pools {
        let pool = |frames| Pool::new(PoolConfig { frames, frame_size });
        Pools { receive: pool(frames), transmit: pool(frames), control: pool((frames / 4).max(32)) }
    }

    /// What [`super::Port::receive_frames_low`] asks for: less than a quarter is left.
    #[inline]
    pub(crate) fn receive_low(&self) -> bool {
        self.receive.has_less_than(self.receive.capacity() / 4)
    }

    /// What [`super::Port::frames_out`] asks for.
    pub(crate) fn out(&self) -> FramesOut {
        let out = |pool: &Pool| pool.capacity() - pool.available();
        FramesOut { receive: out(&self.receive), transmit: out(&self.transmit), control: out(&self.control) }
    }

    /// What [`super::Port::allocate`] asks for.
    #[inline]
    pub(crate) fn allocate(&mut self, purpose: Purpose, into: &mut Vec<Frame>, count: usize) -> usize {
        let pool = match purpose {
            Purpose::Transmit => &mut self.transmit,
            Purpose::Control => &mut self.control,
        };
        pool.take_burst(into, count)
    }
}

/// Reads option `name`, a whole number within `range`.
pub(crate) fn number(
    url: &PortUrl,
    name: &'static str,
    default: usize,
    range: std::ops::RangeInclusive<usize>,
) -> Result<usize, PortError> {
    let value: String = url.option(name, default.to_string())?;
    match value.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => {
            let reason = format!("use {} to {}", range.start(), range.end());
            Err(PortError::Option { option: name.to_owned(), value, reason })
        }
    }
}

/// Smallest MTU that a port may be given: a packet header with some payload, and a small control packet, fit.
pub(crate) const MTU_MIN: usize = 256;

/// How many frames a pool may be given.
pub(crate) const FRAMES: std::ops::RangeInclusive<usize> = 16..=1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_can_not_take_the_frames_of_control() {
        let mut pools = Pools::new(16, 256);
        let mut data = Vec::new();
        assert_eq!(pools.allocate(Purpose::Transmit, &mut data, 100), 16);
        assert_eq!(pools.allocate(Purpose::Transmit, &mut data, 1), 0);
        let mut control = Vec::new();
        assert_eq!(pools.allocate(Purpose::Control, &mut control, 100), 32);
        assert!(pools.receive.take().is_some());
        data.clear();
        assert_eq!(pools.allocate(Purpose::Transmit, &mut data, 100), 16);
    }

    #[test]
    fn a_number_out_of_range_says_what_would_do() {
        let url: PortUrl = "mem://a?frames=3".parse().unwrap();
        let error = number(&url, "frames", 64, FRAMES).unwrap_err().to_string();
        assert_eq!(error, "frames=3: use 16 to 1048576");
        let url: PortUrl = "mem://a?frames=many".parse().unwrap();
        let error = number(&url, "frames", 64, FRAMES).unwrap_err().to_string();
        assert_eq!(error, "frames=many: use 16 to 1048576");
    }
}
