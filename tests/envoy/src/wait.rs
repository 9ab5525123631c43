//! Waits for a condition, with a deadline: never for a time that is hoped to be enough.

use anyhow::{bail, Result};
use std::time::{Duration, Instant};

/// How long between two looks at a condition. Short against everything that is waited for (a start, a
/// poll, a scrape), long against the cost of a look (one HTTP request to the admin interface).
const PAUSE: Duration = Duration::from_millis(20);

/// Looks at `condition` until it gives a value; an error that names `what` once `within` has passed.
pub async fn until<T>(
    what: &str,
    within: Duration,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(value) = condition().await {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("not within {within:?}: {what}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
