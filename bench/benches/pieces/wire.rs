//! The packet format: parsing, writing, and the checksum of ports that need one.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use tautline_net::wire::{DATA_OVERHEAD, Fragment, Header, Kind, expand_number};

const SMALL: usize = 32;
const FULL: usize = 1344;

fn fragment() -> Fragment {
    Fragment { slot: 7.into(), class: 1, shift: 0, sequence: 9.into(), total: (SMALL as u32).into(), offset: 0.into() }
}

fn packet(len: usize) -> Vec<u8> {
    let mut datagram = vec![0; len];
    Header::new(Kind::Data).emit(&mut datagram);
    fragment().emit(&mut datagram);
    datagram
}

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wire");
    let small = packet(DATA_OVERHEAD + SMALL);
    assert!(Header::parse(&small).is_ok() && Fragment::parse(&small).is_ok());
    group.bench_function("parse a data packet", |bencher| {
        bencher.iter(|| {
            let datagram = black_box(&small[..]);
            let (header, kind) = Header::parse(datagram).expect("a packet made above");
            let (fragment, payload) = Fragment::parse(datagram).expect("a packet made above");
            black_box((header.number, kind, fragment.slot, payload.len()))
        });
    });
    let mut into = small.clone();
    group.bench_function("write a data packet's headers", |bencher| {
        bencher.iter(|| {
            let datagram = black_box(&mut into[..]);
            black_box(&Header::new(Kind::Data)).emit(datagram);
            black_box(&fragment()).emit(datagram);
        });
    });
    group.bench_function("expand a packet number", |bencher| {
        bencher.iter(|| expand_number(black_box(5), black_box(0x1_0000_0003)));
    });
    for len in [DATA_OVERHEAD + SMALL, FULL] {
        let mut datagram = packet(len);
        Header::seal(&mut datagram);
        assert!(Header::verify(&datagram).is_ok());
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(format!("verify the checksum of {len} bytes"), |bencher| {
            bencher.iter(|| Header::verify(black_box(&datagram)).is_ok());
        });
    }
    group.finish();
}
