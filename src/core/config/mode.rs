//! Which requests are routed, which only judged, and which left alone?
//!
//! `mode` is one word for all requests, or what share of them is in which mode, so that routing can be introduced
//! a few percent at a time: `"shadow"`, then `{"on": 10, "shadow": 90}`, then `"on"`.

use super::{shown, Refusal, Section};
use serde_json::Value;

/// What is done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Nothing, but for the headers that a client must not send.
    Off,
    /// It is decided and learned from, but goes where Envoy's own policy sends it.
    Shadow,
    /// It is routed.
    #[default]
    On,
}

/// The share of requests in each mode, in percent. The rest is off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Modes {
    /// Routed.
    pub on: f64,
    /// Decided, but not routed.
    pub shadow: f64,
}

impl From<Mode> for Modes {
    fn from(mode: Mode) -> Self {
        let all_if = |this: Mode| if mode == this { 100.0 } else { 0.0 };
        Self { on: all_if(Mode::On), shadow: all_if(Mode::Shadow) }
    }
}

impl Modes {
    pub(super) fn take(parent: &mut Section, name: &str) -> Result<Self, Refusal> {
        let mode = match parent.take(name) {
            None => Mode::On,
            // To YAML, a bare `on` or `off` is a boolean.
            Some(Value::Bool(true)) => Mode::On,
            Some(Value::Bool(false)) => Mode::Off,
            Some(Value::String(word)) => match word.as_str() {
                "on" => Mode::On,
                "shadow" => Mode::Shadow,
                "off" => Mode::Off,
                _ => return Err(parent.refuse(name, &format!("{WANTED}, got \"{word}\""))),
            },
            Some(Value::Object(map)) => return Self::shares(Section { path: parent.key(name), map }),
            Some(other) => return Err(parent.wrong(name, "a string or an object", &other)),
        };
        Ok(mode.into())
    }

    fn shares(mut section: Section) -> Result<Self, Refusal> {
        let on = section.number("on", 0.0, 0.0, 100.0)?;
        let shadow = section.number("shadow", 0.0, 0.0, 100.0)?;
        if on + shadow > 100.0 + ROUNDING {
            let sum = shown(on + shadow);
            return Err(
                section.refuse("shadow", &format!("and mode.on must be 100 together at most, got {sum}"))
            );
        }
        section.finish()?;
        Ok(Self { on, shadow })
    }

    /// Draws a request's mode by `lot`, any number as likely as any other.
    pub fn draw(&self, lot: u64) -> Mode {
        // 53 bits into [0, 100).
        let percent = (lot >> 11) as f64 * (100.0 / (1_u64 << 53) as f64);
        if percent < self.on {
            Mode::On
        } else if percent < self.on + self.shadow {
            Mode::Shadow
        } else {
            Mode::Off
        }
    }
}

const WANTED: &str = "must be \"on\", \"shadow\", \"off\", or their percentages";

/// 0.1 + 99.9 may be a little more than 100.
const ROUNDING: f64 = 1e-9;
