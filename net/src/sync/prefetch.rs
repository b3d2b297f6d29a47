//! Asking the processor for memory that is needed soon, while there is something else to do.
//!
//! With thousands of sessions each packet is for one that is in no near cache, and every line of it that is missed one after the other costs as
//! much as dozens of instructions. A burst says beforehand which sessions it is for.

/// Bytes that are fetched together.
const LINE: usize = 64;

/// Asks for the lines that hold `len` bytes from `start` on. Nothing is read: no address is wrong, only useless.
#[inline(always)]
pub(crate) fn bytes(start: *const u8, len: usize) {
    let mut at = 0;
    let inside = start.addr() % LINE;
    while at < len + inside && len > 0 {
        line(start.wrapping_add(at));
        at += LINE;
    }
}

/// Asks for the line that holds the byte at `at`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) fn line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every processor of this architecture has the instruction (SSE is part of its base), and it is a hint: it reads nothing that the
    // program could see, and an address that is not mapped is passed over without a fault.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

/// Asks for the line that holds the byte at `at`, to write to it: other cores give it up.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) fn line_to_write(at: *const u8) {
    // Written out, because the compiler makes it a request for reading where the build does not name a processor.
    // SAFETY: a hint as above. Processors of this architecture without the instruction take it for one that does nothing.
    unsafe { std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// Elsewhere the stable compiler has no such hints.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
pub(crate) fn line(_: *const u8) {}

/// As [`line`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
pub(crate) fn line_to_write(_: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_may_be_asked_for_and_nothing_changes() {
        let values = [7u64; 100];
        bytes(values.as_ptr().cast(), size_of_val(&values));
        bytes(values.as_ptr().cast(), 0);
        line_to_write(values.as_ptr().cast());
        line_to_write(std::ptr::null());
        bytes(std::ptr::null(), 1000);
        bytes(std::ptr::without_provenance(usize::MAX), 1000);
        assert_eq!(values, [7; 100]);
    }
}
