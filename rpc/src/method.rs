//! Methods: a 32-bit number on the wire, a name in code and metrics, and the table that finds one's service.

use std::fmt;
use std::hash::{Hash, Hasher};

/// A method: what a request asks for. On the wire it is a 32-bit number, usually the hash of its name; the name itself stays at
/// home, for metrics and logs.
#[derive(Clone, Copy)]
pub struct Method {
    id: u32,
    name: &'static str,
    idempotent: bool,
}

impl Method {
    /// The method called `name`, by convention `package.Service/Method`. Its number is the name's FNV-1a hash. Two names that
    /// collide can't be served by one node: registration refuses the second.
    pub const fn named(name: &'static str) -> Method {
        let bytes = name.as_bytes();
        let mut hash: u32 = 0x811c_9dc5;
        let mut at = 0;
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
            at += 1;
        }
        Method { id: hash, name, idempotent: false }
    }

    /// A method by number, for protocols that have their own numbering. Metrics call it by that number.
    pub const fn from_id(id: u32) -> Method {
        Method { id, name: "", idempotent: false }
    }

    /// The same method, declared idempotent: executing it twice has the effect of executing it once, as of a read. Callers that know several
    /// servers then call another one where the first may have executed it and can't say so. The caller declares it; it does not travel.
    ///
    /// ```
    /// # use tautline_rpc::Method;
    /// const READ: Method = Method::named("example.Store/Read").idempotent();
    /// const APPEND: Method = Method::named("example.Store/Append");
    /// assert!(READ.is_idempotent() && !APPEND.is_idempotent());
    /// ```
    pub const fn idempotent(self) -> Method {
        Method { idempotent: true, ..self }
    }

    /// Whether it was declared [idempotent](Method::idempotent).
    pub const fn is_idempotent(self) -> bool {
        self.idempotent
    }

    /// The number on the wire.
    pub const fn id(self) -> u32 {
        self.id
    }

    /// The name; empty if it was made from a number.
    pub const fn name(self) -> &'static str {
        self.name
    }
}

impl PartialEq for Method {
    fn eq(&self, other: &Method) -> bool {
        self.id == other.id
    }
}

impl Eq for Method {}

impl Hash for Method {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_empty() { write!(f, "{:#010x}", self.id) } else { f.write_str(self.name) }
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Method number to small dense index: open addressing with linear probing in a power-of-two table at most half full. Method
/// numbers are hashes already, so their low bits are the bucket; what a peer may look up cannot add to the table.
#[derive(Debug)]
pub(crate) struct MethodTable {
    /// (number, index + 1); an index of 0 marks an empty bucket.
    buckets: Vec<(u32, u32)>,
    methods: Vec<Method>,
}

impl MethodTable {
    pub(crate) fn new() -> MethodTable {
        MethodTable { buckets: vec![(0, 0); 16], methods: Vec::new() }
    }

    #[inline]
    pub(crate) fn find(&self, id: u32) -> Option<u32> {
        let mask = self.buckets.len() - 1;
        let mut at = id as usize & mask;
        loop {
            let (key, index) = self.buckets[at & mask];
            if index == 0 {
                return None;
            }
            if key == id {
                return Some(index - 1);
            }
            at += 1;
        }
    }

    /// Adds a method; its index if new, the method that has the number already if not.
    pub(crate) fn insert(&mut self, method: Method) -> Result<u32, Method> {
        if let Some(index) = self.find(method.id) {
            return Err(self.methods[index as usize]);
        }
        if (self.methods.len() + 1) * 2 > self.buckets.len() {
            let doubled = self.buckets.len() * 2;
            let old = std::mem::replace(&mut self.buckets, vec![(0, 0); doubled]);
            for (id, index) in old.into_iter().filter(|&(_, index)| index != 0) {
                self.place(id, index);
            }
        }
        self.methods.push(method);
        let index = self.methods.len() as u32;
        self.place(method.id, index);
        Ok(index - 1)
    }

    pub(crate) fn len(&self) -> usize {
        self.methods.len()
    }

    fn place(&mut self, id: u32, index: u32) {
        let mask = self.buckets.len() - 1;
        let mut at = id as usize & mask;
        while self.buckets[at].1 != 0 {
            at = (at + 1) & mask;
        }
        self.buckets[at] = (id, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_hashes_as_fnv_1a_says() {
        // Test vectors of the FNV reference.
        assert_eq!(Method::named("").id(), 0x811c_9dc5);
        assert_eq!(Method::named("a").id(), 0xe40c_292c);
        assert_eq!(Method::named("foobar").id(), 0xbf9c_f968);
    }

    #[test]
    fn the_table_finds_each_method_and_nothing_else() {
        let mut table = MethodTable::new();
        for id in 0..1000 {
            // All in the same few buckets, to make them probe.
            assert_eq!(table.insert(Method::from_id(id * 64)), Ok(id));
        }
        for id in 0..64_000 {
            assert_eq!(table.find(id), (id % 64 == 0).then_some(id / 64));
        }
        assert_eq!(table.len(), 1000);
    }

    #[test]
    fn a_colliding_name_is_refused_and_the_holder_named() {
        let mut table = MethodTable::new();
        table.insert(Method::named("a")).unwrap();
        let holder = table.insert(Method::from_id(Method::named("a").id())).unwrap_err();
        assert_eq!(holder.name(), "a");
    }
}
