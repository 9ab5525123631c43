//! Where does plain text end? The loop that most bytes of most bodies go through.

/// How many bytes come before the first quote or backslash.
#[inline]
pub fn plain_run(bytes: &[u8]) -> usize {
    let mut skipped = 0;
    for lane in bytes.chunks_exact(LANE) {
        if let Some(first) = first_special(lane) {
            return skipped + first;
        }
        skipped += LANE;
    }
    let rest = bytes.get(skipped..).unwrap_or(&[]);
    skipped + rest.iter().position(|&byte| byte == b'"' || byte == b'\\').unwrap_or(rest.len())
}

/// Bytes looked at together.
const LANE: usize = 16;

/// Where the first quote or backslash of sixteen bytes is.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
#[inline]
fn first_special(lane: &[u8]) -> Option<usize> {
    use core::arch::wasm32::{i8x16_bitmask, u64x2, u8x16_eq, u8x16_splat, v128_or};
    let (low, high) = lane.split_at(LANE / 2);
    let word = |half: &[u8]| half.try_into().map_or(0, u64::from_le_bytes);
    let lane = u64x2(word(low), word(high));
    let special = v128_or(u8x16_eq(lane, u8x16_splat(b'"')), u8x16_eq(lane, u8x16_splat(b'\\')));
    let mask = i8x16_bitmask(special);
    (mask != 0).then(|| mask.trailing_zeros() as usize)
}

/// Where the first quote or backslash of sixteen bytes is.
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
fn first_special(lane: &[u8]) -> Option<usize> {
    let (low, high) = lane.split_at(LANE / 2);
    let (low, high) = (special_bytes(low), special_bytes(high));
    match (low, high) {
        (0, 0) => None,
        (0, _) => Some(LANE / 2 + high.trailing_zeros() as usize / 8),
        _ => Some(low.trailing_zeros() as usize / 8),
    }
}

#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
/// Of eight bytes, a high bit at the first that is a quote or backslash, and none if there is none.
fn special_bytes(word: &[u8]) -> u64 {
    let word = word.try_into().map_or(0, u64::from_le_bytes);
    zero_bytes(word ^ u64::from_le_bytes([b'"'; 8])) | zero_bytes(word ^ u64::from_le_bytes([b'\\'; 8]))
}

#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
/// A high bit at the first byte that is zero, and none if there is none. (Above the first one it may be
/// wrong: a borrow runs up.)
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(u64::from_le_bytes([0x01; 8])) & !word & u64::from_le_bytes([0x80; 8])
}
