//! How is Envoy's resolver asked? By an import that only Envoy has: built with the feature `dns` alone.
//!
//! The answer comes to a callback that the SDK does not know, and may come while the call is still being made. So it is
//! put aside, and whoever asked takes it at the next tick.

use super::host::{self, Buffer};
use super::stats::OrCount;
use std::cell::RefCell;

/// Answers that are put aside at most: one is asked for at a time, and those that came too late are dropped first.
const MOST: usize = 8;

thread_local! {
    /// Tokens, and what came for them.
    static ANSWERS: RefCell<Vec<(u32, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
}

/// Asks for all addresses of a name. Answers the token for [`take`], unless Envoy does not take the call.
pub fn ask(name: &str) -> Option<u32> {
    host::resolve(name).or_count()
}

/// The answer for a token, if it has come. An empty one says that the name does not resolve.
pub fn take(token: u32) -> Option<Vec<u8>> {
    ANSWERS.with_borrow_mut(|answers| {
        let place = answers.iter().position(|(other, _)| *other == token)?;
        Some(answers.swap_remove(place).1)
    })
}

/// Envoy has an answer.
#[allow(missing_docs)]
#[no_mangle]
pub extern "C" fn envoy_on_resolve_dns(_context: u32, token: u32, size: usize) {
    let answer = if size == 0 { None } else { host::buffer(Buffer::CallData, 0, size).or_count() };
    ANSWERS.with_borrow_mut(|answers| {
        if answers.len() >= MOST {
            answers.remove(0);
        }
        answers.push((token, answer.unwrap_or_default()));
    });
}
