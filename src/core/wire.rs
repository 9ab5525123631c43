//! How core values are written into shared data: little-endian fields, one after another.
//!
//! Readers answer `None` at the first field that is missing, so a value cut short, written by another
//! version or by another plugin under the same `vm_id` is ignored as a whole, never half believed.

/// Appends fields to a value.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// A value that starts with `version`, so that a later layout is not read as this one.
    pub fn new(version: u8) -> Self {
        Self { bytes: vec![version] }
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) {
        self.raw(&[value]);
    }

    /// Appends two bytes, little-endian.
    pub fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends four bytes, little-endian.
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends eight bytes, little-endian.
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends a 64-bit float by its bits.
    pub fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }

    /// Appends a string of at most 255 bytes behind its length; a longer one is cut.
    pub fn short_str(&mut self, value: &str) {
        let bytes = value.as_bytes();
        let bytes = bytes.get(..255).unwrap_or(bytes);
        self.u8(bytes.len() as u8);
        self.raw(bytes);
    }

    /// Appends bytes as they are; the reader must know how many.
    // One copy of it: values are written at ticks, where a call costs nothing, and the module has a size.
    #[inline(never)]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The finished value.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Takes fields off a value.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader behind the version byte, or `None` if the value has another version.
    pub fn new(bytes: &'a [u8], version: u8) -> Option<Self> {
        match bytes.split_first() {
            Some((&found, rest)) if found == version => Some(Self { rest }),
            _ => None,
        }
    }

    /// A reader of fields that have no version of their own.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Takes `len` bytes.
    pub fn raw(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.rest.get(..len)?;
        self.rest = self.rest.get(len..)?;
        Some(taken)
    }

    /// Takes one byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.raw(1)?.first().copied()
    }

    /// Takes two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.raw(2)?.try_into().ok()?))
    }

    /// Takes four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.raw(4)?.try_into().ok()?))
    }

    /// Takes eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.raw(8)?.try_into().ok()?))
    }

    /// Takes a 64-bit float.
    pub fn f64(&mut self) -> Option<f64> {
        Some(f64::from_bits(self.u64()?))
    }

    /// Takes a string that [`Writer::short_str`] wrote; `None` if it is not UTF-8.
    pub fn short_str(&mut self) -> Option<&'a str> {
        let len = self.u8()?;
        core::str::from_utf8(self.raw(usize::from(len))?).ok()
    }

    /// What has not been taken.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether every field has been taken.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}
