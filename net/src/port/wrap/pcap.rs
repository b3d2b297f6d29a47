//! A port that writes every datagram to a capture file.
//!
//! The format is the classic libpcap one with nanosecond time stamps (magic number 0xa1b23c4d) and link type RAW (101): each record
//! begins with an IP header, which is made up from the addresses, as is the UDP header after it, so that Wireshark and tcpdump show
//! addresses, ports and directions. Names of `mem` and `sim` ports become addresses in 10.0.0.0/8, by a hash of the name.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::clock::{Clock, Time};
use crate::frame::Frame;
use crate::port::{Address, Capabilities, Datagram, FramesOut, Port, PortCounters, PortError, Purpose};

/// Writes every datagram that crosses a port to a file.
#[derive(Debug)]
pub struct Pcap<P> {
    inner: P,
    local: Address,
    capture: Capture,
    /// Records of datagrams that the device has not taken yet, one after another.
    staged: Vec<u8>,
    /// Where each ends, and where the packet it is of lies.
    staged_ends: Vec<(usize, usize)>,
}

impl<P: Port> Pcap<P> {
    /// Captures what crosses `inner` to a new file at `path`.
    pub fn create(inner: P, path: impl AsRef<Path>, clock: Clock) -> Result<Pcap<P>, PortError> {
        let path = path.as_ref();
        let capture = Capture::create(path, clock).map_err(|error| PortError::Option {
            option: "pcap".to_owned(),
            value: path.display().to_string(),
            reason: format!("the file can't be written: {error}"),
        })?;
        let local = inner.local_address();
        Ok(Pcap { inner, local, capture, staged: Vec::new(), staged_ends: Vec::new() })
    }

    /// Writes out what is buffered. Dropping the port does it too, but can't say that it failed.
    pub fn flush(&mut self) -> io::Result<()> {
        self.capture.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl<P: Port> Port for Pcap<P> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn local_address(&self) -> Address {
        self.local
    }

    fn receive(&mut self, into: &mut Vec<Datagram>, max: usize) -> Result<usize, PortError> {
        let before = into.len();
        let count = self.inner.receive(into, max)?;
        if count > 0 {
            let stamp = self.capture.stamp();
            for datagram in &into[before..] {
                self.staged.clear();
                record(&mut self.staged, stamp, datagram.peer, self.local, &datagram.frame);
                self.capture.write(&self.staged);
            }
            self.staged.clear();
        }
        Ok(count)
    }

    fn receive_frames_low(&self) -> bool {
        self.inner.receive_frames_low()
    }

    fn frames_out(&self) -> FramesOut {
        self.inner.frames_out()
    }

    fn allocate(&mut self, purpose: Purpose, into: &mut Vec<Frame>, count: usize) -> usize {
        self.inner.allocate(purpose, into, count)
    }

    fn transmit(&mut self, burst: &mut Vec<Datagram>) -> Result<usize, PortError> {
        if burst.is_empty() {
            return self.inner.transmit(burst);
        }
        let stamp = self.capture.stamp();
        for datagram in burst.iter() {
            record(&mut self.staged, stamp, self.local, datagram.peer, &datagram.frame);
            self.staged_ends.push((self.staged.len(), datagram.frame.data().as_ptr().addr()));
        }
        let outcome = self.inner.transmit(burst);
        // What is still in the burst will be offered again, and captured when it goes.
        let mut start = 0;
        for (end, packet) in self.staged_ends.drain(..) {
            if !burst.iter().any(|left| left.frame.data().as_ptr().addr() == packet) {
                self.capture.write(&self.staged[start..end]);
            }
            start = end;
        }
        self.staged.clear();
        outcome
    }

    fn attach_wait(&mut self, registry: &mio::Registry, token: mio::Token, waker: &Arc<mio::Waker>) -> io::Result<()> {
        self.inner.attach_wait(registry, token, waker)
    }

    fn prepare_wait(&mut self) -> bool {
        let idle = self.inner.prepare_wait();
        if idle && let Err(error) = self.flush() {
            self.capture.stop(&error);
        }
        idle
    }

    fn finish_wait(&mut self) {
        self.inner.finish_wait();
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

/// A capture stops at this size, so that one that was forgotten does not fill the disk.
const MOST_BYTES: u64 = 1 << 30;

#[derive(Debug)]
struct Capture {
    /// `None` once it has stopped.
    file: Option<BufWriter<File>>,
    path: PathBuf,
    written: u64,
    clock: Clock,
    /// The wall clock at the clock's origin.
    origin: Duration,
}

impl Capture {
    fn create(path: &Path, clock: Clock) -> io::Result<Capture> {
        let mut file = BufWriter::with_capacity(1 << 16, File::create(path)?);
        let words = [0xa1b2_3c4d_u32, 2 | 4 << 16, 0, 0, 65_535 + 48, 101];
        for word in words {
            file.write_all(&word.to_le_bytes())?;
        }
        file.flush()?;
        let origin = if clock.is_virtual() {
            Duration::ZERO
        } else {
            let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            wall.saturating_sub(clock.now().since(Time::ZERO))
        };
        Ok(Capture { file: Some(file), path: path.to_owned(), written: 24, clock, origin })
    }

    fn stamp(&self) -> Duration {
        self.origin + self.clock.now().since(Time::ZERO)
    }

    fn write(&mut self, record: &[u8]) {
        let Some(file) = &mut self.file else { return };
        self.written += record.len() as u64;
        if self.written > MOST_BYTES {
            self.stop(&"it has reached 1 GiB");
        } else if let Err(error) = file.write_all(record) {
            self.stop(&error);
        }
    }

    fn stop(&mut self, reason: &dyn std::fmt::Display) {
        tracing::warn!(path = %self.path.display(), %reason, "the packet capture ends");
        self.file = None;
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.file.as_mut().map(Write::flush) {
            self.stop(&error);
        }
    }
}

/// Appends a record: its own header, an IP and a UDP header, and the packet.
fn record(into: &mut Vec<u8>, stamp: Duration, from: Address, to: Address, packet: &[u8]) {
    let (from, to) = (socket(from), socket(to));
    let udp_len = 8 + packet.len();
    let v4 = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Some((from, to)),
        _ => None,
    };
    let total = if v4.is_some() { 20 } else { 40 } + udp_len;
    for word in [stamp.as_secs() as u32, stamp.subsec_nanos(), total as u32, total as u32] {
        into.extend_from_slice(&word.to_le_bytes());
    }
    // Sum of the pseudo header: both addresses, protocol and length.
    let mut sum = Checksum::default();
    if let Some((source, destination)) = v4 {
        let start = into.len();
        into.extend_from_slice(&[0x45, 0]);
        into.extend_from_slice(&u16::try_from(total).unwrap_or(u16::MAX).to_be_bytes());
        into.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
        into.extend_from_slice(&source.octets());
        into.extend_from_slice(&destination.octets());
        let mut header = Checksum::default();
        header.add(&into[start..]);
        into[start + 10..start + 12].copy_from_slice(&header.value());
        sum.add(&into[start + 12..]);
    } else {
        into.extend_from_slice(&[0x60, 0, 0, 0]);
        into.extend_from_slice(&u16::try_from(udp_len).unwrap_or(u16::MAX).to_be_bytes());
        into.extend_from_slice(&[17, 64]);
        let start = into.len();
        into.extend_from_slice(&v6(from.ip()).octets());
        into.extend_from_slice(&v6(to.ip()).octets());
        sum.add(&into[start..]);
    }
    let udp_len = u16::try_from(udp_len).unwrap_or(u16::MAX).to_be_bytes();
    sum.add(&[0, 17]);
    sum.add(&udp_len);
    let start = into.len();
    into.extend_from_slice(&from.port().to_be_bytes());
    into.extend_from_slice(&to.port().to_be_bytes());
    into.extend_from_slice(&udp_len);
    into.extend_from_slice(&[0, 0]);
    into.extend_from_slice(packet);
    sum.add(&into[start..]);
    // Zero would mean that there is no checksum (RFC 768).
    let value = if sum.value() == [0, 0] { [0xff, 0xff] } else { sum.value() };
    into[start + 6..start + 8].copy_from_slice(&value);
}

/// The address that stands for this one in the capture.
fn socket(address: Address) -> SocketAddr {
    match address {
        Address::Inet(address) => address,
        Address::Local(name) => {
            let hash = name.as_str().bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
            SocketAddr::from((Ipv4Addr::from(hash >> 8 | 10 << 24), 7000))
        }
    }
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The Internet checksum (RFC 1071) of pieces of even length, but for the last.
#[derive(Default)]
struct Checksum(u64);

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        let (pairs, rest) = bytes.as_chunks::<2>();
        self.0 += pairs.iter().map(|&pair| u64::from(u16::from_be_bytes(pair))).sum::<u64>();
        self.0 += rest.first().map_or(0, |&last| u64::from(last) << 8);
    }

    fn value(&self) -> [u8; 2] {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::mem::MemPort;

    fn sums_to_zero(parts: &[&[u8]]) -> bool {
        let mut sum = Checksum::default();
        parts.iter().for_each(|part| sum.add(part));
        sum.value() == [0, 0]
    }

    #[test]
    fn headers_of_both_families_have_right_lengths_and_checksums() {
        for len in [0, 1, 2, 33, 1344] {
            let packet: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let mut bytes = Vec::new();
            let inet = |text: &str| Address::Inet(text.parse().unwrap());
            record(&mut bytes, Duration::new(3, 5), inet("10.1.2.3:7000"), inet("10.1.2.4:8000"), &packet);
            assert_eq!(bytes[..8], [3, 0, 0, 0, 5, 0, 0, 0]);
            assert_eq!(bytes[8..12], (28 + len as u32).to_le_bytes());
            let ip = &bytes[16..];
            assert_eq!(ip.len(), 28 + len);
            assert_eq!(ip[2..4], (28 + len as u16).to_be_bytes());
            assert!(sums_to_zero(&[&ip[..20]]));
            assert!(sums_to_zero(&[&ip[12..20], &[0, 17], &(8 + len as u16).to_be_bytes(), &ip[20..]]));
            assert_eq!(&ip[28..], packet);

            bytes.clear();
            record(&mut bytes, Duration::ZERO, inet("[fd00::1]:7000"), inet("[fd00::2]:8000"), &packet);
            let ip = &bytes[16..];
            assert_eq!((ip[0], ip.len()), (0x60, 48 + len));
            assert!(sums_to_zero(&[&ip[8..40], &[0, 17], &(8 + len as u16).to_be_bytes(), &ip[40..]]));
        }
    }

    #[test]
    fn a_capture_has_every_datagram_once_in_order_and_both_directions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mem.pcap");
        let clock = Clock::virtual_at(Time::from_nanos(1_500_000_000));
        // A ring of two slots, so that the third datagram is refused once.
        let a = MemPort::open(&"mem://pcap-a?slots=2".parse().unwrap()).unwrap();
        let mut b = MemPort::open(&"mem://pcap-b?slots=2".parse().unwrap()).unwrap();
        let mut a = Pcap::create(a, &path, clock).unwrap();
        let mut frames = Vec::new();
        a.allocate(Purpose::Transmit, &mut frames, 3);
        let mut burst: Vec<Datagram> = frames
            .into_iter()
            .zip(b"xyz")
            .map(|(mut frame, &byte)| {
                frame.set_range(0, 1);
                frame.data_mut()[0] = byte;
                Datagram { frame, peer: b.local_address() }
            })
            .collect();
        assert_eq!(a.transmit(&mut burst).unwrap(), 2);
        let mut echo = Vec::new();
        b.receive(&mut echo, 8).unwrap();
        assert_eq!(a.transmit(&mut burst).unwrap(), 1);
        b.transmit(&mut Vec::from([echo.remove(0)])).unwrap();
        a.receive(&mut Vec::new(), 8).unwrap();
        drop(a);

        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..4], [0x4d, 0x3c, 0xb2, 0xa1]);
        let (head, records) = bytes.split_at(24);
        assert_eq!(head[20..], 101u32.to_le_bytes());
        let records: Vec<&[u8]> = records.chunks(16 + 28 + 1).collect();
        let payloads: Vec<u8> = records.iter().map(|record| record[44]).collect();
        assert_eq!(payloads, b"xyzx");
        assert_eq!(records[0][..8], [1, 0, 0, 0, 0, 0x65, 0xcd, 0x1d], "1.5 seconds");
        assert_eq!(records[0][16 + 12..16 + 16], records[3][16 + 16..16 + 20], "the echo goes the other way");
    }

    #[test]
    fn a_file_that_can_not_be_made_is_a_clear_error() {
        let port = MemPort::open(&"mem://pcap-none".parse().unwrap()).unwrap();
        let error = Pcap::create(port, "/no/such/folder/x.pcap", Clock::tsc()).unwrap_err().to_string();
        assert!(error.starts_with("pcap=/no/such/folder/x.pcap: the file can't be written: "), "{error}");
    }
}
