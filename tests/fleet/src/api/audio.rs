//! `/v1/audio/transcriptions`: what is said in a recording? Letters, as everywhere here. The form is not read beyond
//! being one: it is there so that a body that is no JSON has somewhere to go.

use xxhash_rust::xxh3::xxh3_64;

use crate::answer::{quote, ApiError};
use crate::api::Asked;
use crate::prompt::push_generated;
use crate::request::{missing, DEFAULT_MAX_TOKENS};

/// `/v1/audio/transcriptions`
pub(crate) fn transcribe(asked: &Asked<'_>) -> Result<String, ApiError> {
    let is_form = |media_type: &str| media_type.eq_ignore_ascii_case("multipart/form-data");
    if !asked.media_type().is_some_and(is_form) || asked.body.is_empty() {
        return Err(missing("file", asked.body));
    }
    let (seed, mut text) = (xxh3_64(asked.body), Vec::new());
    (0..DEFAULT_MAX_TOKENS)
        .for_each(|at| push_generated(&mut text, seed, at, asked.options().bytes_per_token));
    Ok(format!(r#"{{"text":{}}}"#, quote(&String::from_utf8_lossy(&text))))
}
