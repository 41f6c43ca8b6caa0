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
