//! What does a gateway have under way on each host, and what do polls say is there besides?

use ::kvroute::core::scrape::EngineSample;

/// One gateway's books. Hosts are never forgotten: a number is a few bytes, and is not used again.
#[derive(Debug, Clone, Default)]
pub struct Books {
    hosts: Vec<Page>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Page {
    requests: u32,
    prefill_tokens: u64,
    /// Own requests when the poll under way was sent.
    asked: u32,
    foreign: u32,
    capacity_tokens: Option<u64>,
}

impl Books {
    /// Own requests that have not ended.
    pub fn requests(&self, host: usize) -> u32 {
        self.page(host).requests
    }

    /// Of own requests without a first token: the tokens that were believed uncached when they were sent.
    pub fn prefill_tokens(&self, host: usize) -> u64 {
        self.page(host).prefill_tokens
    }

    /// Requests running and waiting that others sent, as of the last poll.
    pub fn foreign(&self, host: usize) -> u32 {
        self.page(host).foreign
    }

    /// Tokens that the host's cache holds, if a poll has said so.
    pub fn capacity_tokens(&self, host: usize) -> Option<u64> {
        self.page(host).capacity_tokens
    }

    /// A request is sent.
    pub fn sent(&mut self, host: usize, uncached_tokens: u32) {
        let page = self.page_mut(host);
        page.requests += 1;
        page.prefill_tokens += u64::from(uncached_tokens);
    }

    /// Its prompt is computed, or never will be.
    pub fn prefilled(&mut self, host: usize, uncached_tokens: u32) {
        let page = self.page_mut(host);
        page.prefill_tokens = page.prefill_tokens.saturating_sub(u64::from(uncached_tokens));
    }

    /// It has ended.
    pub fn ended(&mut self, host: usize) {
        let page = self.page_mut(host);
        page.requests = page.requests.saturating_sub(1);
    }

    /// A poll is sent.
    pub fn asked(&mut self, host: usize) {
        let page = self.page_mut(host);
        page.asked = page.requests;
    }

    /// Its answer. What was sent or ended between question and answer is not taken for others' work.
    pub fn polled(&mut self, host: usize, sample: &EngineSample) {
        let page = self.page_mut(host);
        if let (Some(running), Some(waiting)) = (sample.running, sample.waiting) {
            page.foreign = ((running + waiting) as u32).saturating_sub(page.asked.max(page.requests));
        }
        page.capacity_tokens = sample.capacity_tokens.map(|tokens| tokens as u64).or(page.capacity_tokens);
    }

    fn page(&self, host: usize) -> Page {
        self.hosts.get(host).copied().unwrap_or_default()
    }

    fn page_mut(&mut self, host: usize) -> &mut Page {
        if host >= self.hosts.len() {
            self.hosts.resize(host + 1, Page::default());
        }
        &mut self.hosts[host]
    }
}
