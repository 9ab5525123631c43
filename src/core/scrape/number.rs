//! What number does a token spell?

use super::exposition::split_where;

/// Parses a whole token as Prometheus writes numbers: decimal, exponent, or NaN and Inf in any case.
///
/// Written out because the standard library's `f64` parser brings some 20 kB of wasm for the last
/// half unit of precision. Here the result is exact up to 15 digits and small exponents, which covers
/// every count and timestamp, and within a few units in the last place beyond.
pub(super) fn parse_number(token: &[u8]) -> Option<f64> {
    let (negative, digits) = match token.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, token),
    };
    let magnitude = if digits.eq_ignore_ascii_case(b"nan") {
        f64::NAN
    } else if digits.eq_ignore_ascii_case(b"inf") || digits.eq_ignore_ascii_case(b"infinity") {
        f64::INFINITY
    } else {
        parse_decimal(digits)?
    };
    Some(if negative { -magnitude } else { magnitude })
}

/// Parses `12`, `1.2`, `.5`, `1.2e+01`; at least one digit before the exponent, nothing after it.
fn parse_decimal(text: &[u8]) -> Option<f64> {
    let (number, exponent) = split_where(text, |b| b == b'e' || b == b'E');
    let (whole, fraction) = split_where(number, |b| b == b'.');
    let fraction = fraction.strip_prefix(b".").unwrap_or_default();
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut mantissa = 0u64;
    let mut scale = match exponent.split_first() {
        Some((_, digits)) => parse_exponent(digits)?,
        None => 0,
    };
    for (digits, after_point) in [(whole, false), (fraction, true)] {
        for &digit in digits {
            if !digit.is_ascii_digit() {
                return None;
            }
            // Nineteen digits fit in 64 bits and are more than an `f64` can tell apart.
            if mantissa < 10u64.pow(18) {
                mantissa = mantissa * 10 + u64::from(digit - b'0');
                scale -= i32::from(after_point);
            } else {
                scale += i32::from(!after_point);
            }
        }
    }
    Some(scaled(mantissa, scale))
}

fn parse_exponent(text: &[u8]) -> Option<i32> {
    let (negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    let mut exponent = 0i32;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // Far beyond what an `f64` can hold, yet far from overflow together with a line's digits.
        exponent = (exponent * 10 + i32::from(digit - b'0')).min(100_000_000);
    }
    Some(if negative { -exponent } else { exponent })
}

/// `mantissa * 10^scale`, in steps of powers that an `f64` holds exactly.
fn scaled(mantissa: u64, scale: i32) -> f64 {
    let mut value = mantissa as f64;
    let mut left = scale.unsigned_abs();
    while left > 0 && value != 0.0 && value.is_finite() {
        let step = left.min(MAX_EXACT_POWER);
        let power = 10u64.pow(step) as f64;
        value = if scale > 0 { value * power } else { value / power };
        left -= step;
    }
    value
}

/// 10^19 is the largest power of ten in a `u64`, and an `f64` holds it exactly (up to 10^22).
const MAX_EXACT_POWER: u32 = 19;
