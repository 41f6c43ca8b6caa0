//! Instructions that the compiler does not find by itself, on x86-64; elsewhere what it finds.

/// `word` with the bit `index % 64` set.
///
/// One instruction; from `word | 1 << index` the compiler makes four here, because it hoists the shift over the
/// test of the same bit.
#[inline(always)]
pub(super) fn with_bit(mut word: u64, index: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes a register.
    unsafe {
        core::arch::asm!("bts {}, {}", inout(reg) word, in(reg) index, options(pure, nomem, nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        word |= 1 << (index % 64);
    }
    word
}

/// `word` without the bit `index % 64`; one instruction, as in [`with_bit`].
#[inline(always)]
pub(super) fn without_bit(mut word: u64, index: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes a register.
    unsafe {
        core::arch::asm!("btr {}, {}", inout(reg) word, in(reg) index, options(pure, nomem, nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        word &= !(1 << (index % 64));
    }
    word
}

/// `value` with so much more in its lowest byte, and nothing carried from there.
///
/// One instruction; of its parts the compiler makes four, and a block that is freed waits for them on the one before.
#[inline(always)]
pub(super) fn add_to_lowest_byte<const MORE: i8>(mut value: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes a register.
    unsafe {
        core::arch::asm!("add {:l}, {}", inout(reg) value, const MORE, options(pure, nomem, nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        value = value & !0xff | value.wrapping_add(MORE as usize) & 0xff;
    }
    value
}

/// Writes `first`, `first + step`, … to the places from the last to the first; all bits set
/// in those that are not less than `behind` away. In all of them `step` times their number is less than 2³¹.
///
/// Four at once: the compiler makes multiplications of the additions, three times as many instructions.
#[inline(always)]
pub(super) fn write_row<const PLACES: usize>(places: &mut [u32; PLACES], first: u32, step: u32, behind: u32) {
    const { assert!(PLACES % 4 == 0) };
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2, which each of these processors has; each store is within the places, of which any four are
    // written by one that needs no alignment.
    unsafe {
        use core::arch::x86_64::{
            _mm_add_epi32, _mm_cmplt_epi32, _mm_or_si128, _mm_set_epi32, _mm_set1_epi32, _mm_slli_epi32,
            _mm_storeu_si128,
        };
        let (all, step) = (_mm_set1_epi32(first as i32), step as i32);
        let (next, last) = (_mm_slli_epi32(_mm_set1_epi32(step), 2), _mm_set1_epi32(behind as i32 - 1));
        let mut distances = _mm_set_epi32(0, step, 2 * step, 3 * step);
        for number in (0..PLACES / 4).rev() {
            let is_none = _mm_cmplt_epi32(last, distances);
            let four = _mm_or_si128(_mm_add_epi32(all, distances), is_none);
            _mm_storeu_si128(places.as_mut_ptr().add(4 * number).cast(), four);
            distances = _mm_add_epi32(distances, next);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    for (number, place) in places.iter_mut().rev().enumerate() {
        let distance = number as u32 * step;
        *place = if distance < behind { first.wrapping_add(distance) } else { u32::MAX };
    }
}

/// The value in a register, of which the compiler knows nothing else: what it is made of is not computed again
/// where it is used, nor put off until then. No instruction.
#[inline(always)]
pub(super) fn in_register(value: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let same;
        // SAFETY: no instruction.
        unsafe {
            core::arch::asm!("/* {} */", inout(reg) value => same, options(pure, nomem, nostack, preserves_flags));
        }
        same
    }
    #[cfg(not(target_arch = "x86_64"))]
    value
}
