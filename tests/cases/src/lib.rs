//! What do the case files say? They are part of the test binary, so that the same bodies serve on targets without a
//! file system. `README.md` beside them says which situation each is of, and which test shows its outcome.
//!
//! A name that ends in `.tmpl` is a template. What is long in it is written as
//!
//! | template | stands for |
//! | --- | --- |
//! | `@@REP(n,text)@@` | the text, n times |
//! | `@@INTS(n,seed)@@` | n token ids, with commas between them |
//! | `@@B64(n,seed)@@` | the base64 of n bytes |

macro_rules! files {
    ($($name:literal)*) => { &[$(($name, include_bytes!(concat!("../", $name)).as_slice())),*] };
}

/// The content of a file, as it is.
///
/// # Panics
///
/// If there is no such file.
pub fn file(name: &str) -> &'static [u8] {
    let file = FILES.iter().find(|(other, _)| *other == name);
    file.unwrap_or_else(|| panic!("there is no case file {name}")).1
}

/// The content of a file that is text, as it is.
///
/// # Panics
///
/// If there is no such file, or it is no text.
pub fn text(name: &str) -> &'static str {
    std::str::from_utf8(file(name)).unwrap_or_else(|_| panic!("{name} is no text"))
}

/// A body as it is sent: a template is expanded.
///
/// # Panics
///
/// If there is no such file.
pub fn body(name: &str) -> Vec<u8> {
    if name.ends_with(".tmpl") {
        expand(text(name)).into_bytes()
    } else {
        file(name).to_vec()
    }
}

/// A template with all that is long in it written out. What only looks like a template stays as it is.
pub fn expand(template: &str) -> String {
    let (mut out, mut rest) = (String::new(), template);
    while let Some(at) = rest.find("@@") {
        let (before, marked) = rest.split_at(at);
        out += before;
        rest = match written_out(marked) {
            Some((text, rest)) => {
                out += &text;
                rest
            }
            None => {
                out.push('@');
                &marked[1..]
            }
        };
    }
    out + rest
}

/// What the mark at the start of `marked` stands for, and what follows it.
fn written_out(marked: &str) -> Option<(String, &str)> {
    let (kind, rest) = marked.strip_prefix("@@")?.split_once('(')?;
    let (count, rest) = rest.split_once(',')?;
    let (argument, rest) = rest.split_once(")@@")?;
    let count = count.parse().ok()?;
    let numbers = |seed: &str| seed.parse().ok().map(|seed| Numbers::new(seed).take(count));
    let text = match kind {
        "REP" => argument.repeat(count),
        "INTS" => {
            let ids = numbers(argument)?.map(|number| (number % 120_000 + 100).to_string());
            ids.collect::<Vec<_>>().join(",")
        }
        "B64" => base64(&numbers(argument)?.map(|number| number as u8).collect::<Vec<_>>()),
        _ => return None,
    };
    Some((text, rest))
}

/// The generator that the files were made for: a linear congruential one, without its lowest byte.
struct Numbers(u32);

impl Numbers {
    fn new(seed: u32) -> Self {
        Self(seed.wrapping_mul(2_654_435_761).wrapping_add(12_345))
    }
}

impl Iterator for Numbers {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some(self.0 >> 8)
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let value = word >> (18 - 6 * digit) & 63;
            out.push(if digit > three.len() { '=' } else { char::from(DIGITS[value as usize]) });
        }
    }
    out
}

/// Every file's name and content.
pub const FILES: &[(&str, &[u8])] = files! [
    "C01-a.json.tmpl"
    "C01-b.json.tmpl"
    "C01-c.json.tmpl"
    "C03-a.json.tmpl"
    "C03-b.json.tmpl"
    "C03-c.json.tmpl"
    "C05-a.json.tmpl"
    "C05-b.json.tmpl"
    "C05-c.json.tmpl"
    "C08-a.json.tmpl"
    "C08-b.json.tmpl"
    "C08-c.json.tmpl"
    "C08-d.json.tmpl"
    "C09-a.json.tmpl"
    "C09-b.json.tmpl"
    "C09-c.json.tmpl"
    "C11-a.json"
    "C11-b.json"
    "C11-c.json"
    "C13-a.json.tmpl"
    "C13-b.json.tmpl"
    "C15-a.json.tmpl"
    "C15-b.json.tmpl"
    "C15-none.json.tmpl"
    "C17-a.json"
    "C17-b.json"
    "C17-c.json"
    "C17-d.bin"
    "C17-e.json"
    "C17-f.json"
    "C20-body.json.gz"
    "C20-scenario.yaml"
    "C22-scenario.yaml"
    "C25-body.json.tmpl"
    "C25-scenario.yaml"
    "C27-body.multipart"
    "C27-scenario.yaml"
    "C30-a.json.tmpl"
    "C30-b.json.tmpl"
    "C30-c.json"
    "C31-scenario.yaml"
    "C33-scenario.yaml"
    "C35-scenario.yaml"
    "C37-scenario.yaml"
    "C39-scenario.yaml"
    "C41-scenario.yaml"
    "C43-scenario.yaml"
    "C46-scenario.yaml"
    "C48-scenario.yaml"
    "C50-scenario.yaml"
    "C52-scenario.yaml"
    "C54-scenario.yaml"
    "C56-scenario.yaml"
    "C58-scenario.yaml"
    "C60-scenario.yaml"
    "C62-scenario.yaml"
    "C64-scenario.yaml"
    "C65-both.prom"
    "C65-neither.prom"
    "C65-new.prom"
    "C65-old.prom"
    "C67-allnan.prom"
    "C67-crlf.prom"
    "C67-mixed.prom"
    "C67-odd.prom"
    "C69-labels.prom"
    "C72-scenario.yaml"
    "C74-scenario.yaml"
    "C76-scenario.yaml"
    "C78-scenario.yaml"
    "C80-scenario.yaml"
    "C82-a.json.tmpl"
    "C82-h2.prom"
    "C82-nomodel.json.tmpl"
    "C82-nullmodel.json"
];
