//! Header maps as Envoy keeps and serialises them.

/// An ordered multimap of header names and values. Names are lower case, as Envoy's codecs make them;
/// values are bytes, since clients send what they like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderMap {
    pairs: Vec<(String, Vec<u8>)>,
}

impl HeaderMap {
    /// The first value of `name`, with bytes that are not UTF-8 replaced.
    pub fn get(&self, name: &str) -> Option<String> {
        self.first(name).map(|value| String::from_utf8_lossy(value).into_owned())
    }

    /// All values of `name`, with bytes that are not UTF-8 replaced.
    pub fn all(&self, name: &str) -> Vec<String> {
        self.iter()
            .filter(|(other, _)| *other == name)
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            .collect()
    }

    /// All names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// How many headers there are.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    pub(crate) fn first(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    pub(crate) fn add(&mut self, name: &str, value: &[u8]) {
        self.pairs.push((name.to_ascii_lowercase(), value.to_vec()));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let name = name.to_ascii_lowercase();
        self.pairs.retain(|(other, _)| *other != name);
    }

    /// Removes every value of `name` and sets one.
    pub(crate) fn replace(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        self.add(name, value);
    }

    /// The ABI's form: the count, all sizes, then every name and value with a NUL after each.
    pub(crate) fn serialized(&self) -> Vec<u8> {
        let mut out = (self.len() as u32).to_le_bytes().to_vec();
        for (name, value) in self.iter() {
            out.extend((name.len() as u32).to_le_bytes());
            out.extend((value.len() as u32).to_le_bytes());
        }
        for (name, value) in self.iter() {
            out.extend(name.as_bytes());
            out.push(0);
            out.extend(value);
            out.push(0);
        }
        out
    }

    /// Reads the ABI's form; `None` if it is not one.
    pub(crate) fn deserialized(bytes: &[u8]) -> Option<Self> {
        let mut map = Self::default();
        if bytes.is_empty() {
            return Some(map);
        }
        let word = |at: usize| {
            let word = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(word) as usize)
        };
        let count = word(0)?;
        let mut at = 4 + count * 8;
        for n in 0..count {
            let name = bytes.get(at..at + word(4 + n * 8)?)?;
            at += name.len() + 1;
            let value = bytes.get(at..at + word(8 + n * 8)?)?;
            at += value.len() + 1;
            map.add(std::str::from_utf8(name).ok()?, value);
        }
        Some(map)
    }
}

impl<N: AsRef<str>, V: AsRef<[u8]>> FromIterator<(N, V)> for HeaderMap {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut map = Self::default();
        for (name, value) in pairs {
            map.add(name.as_ref(), value.as_ref());
        }
        map
    }
}
