//! How is a number written for people and scripts? To thousandths: the libraries' ways to print a float are 15 KiB of
//! wasm and more.

/// A number in decimal digits, to thousandths. What is beyond all bounds says so in words.
pub fn shown(number: f64) -> String {
    if number.is_nan() || number.abs() >= 1e12 {
        return "a number beyond all bounds".to_owned();
    }
    let sign = if number < 0.0 { "-" } else { "" };
    let thousandths = (number.abs() * 1_000.0).round() as u64;
    let (whole, rest) = (thousandths / 1_000, thousandths % 1_000);
    let text = format!("{sign}{whole}.{rest:03}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
