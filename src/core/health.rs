//! Do a host's requests fail, and when is it tried again?
//!
//! A host whose requests failed three times in a row, over all workers, is left out for a second, and then tried with
//! one: if that fails too for two, four, up to ten seconds. What it takes to be believed again depends on what was
//! wrong: any answer ends that it could not be reached, only something generated that it was silent, for a stuck engine
//! goes on to answer whatever needs no computing. Where answers began and were broken off, the next that begins lets the
//! others in behind it, one after another, and only one that comes to its end clears the host.
//!
//! Every worker tells the others in its bulletin what it has against whom ([`Seen`]), and takes over theirs. The one
//! that saw a host fail tries it first ([`HEARD_LATER_MS`]); the others then know within a tick that it is being tried.
//!
//! # Why old requests say nothing new
//!
//! A host that dies fails all that it has at once, one that hangs fails it bit by bit, as the time of each is up. That
//! is one incident: a request that was sent before the host was left out does not make its back-off longer. And one that
//! ran out of time says nothing of a host that has answered one sent later.

/// Failures in a row after which a host is suspect. One or two happen to good hosts (a keep-alive
/// connection closed under a request).
const SUSPECT_AFTER: u32 = 3;

/// The first back-off of a suspect host; doubles with each further failure.
const FIRST_BACK_OFF_MS: u64 = 1_000;

/// The longest back-off: a host that returns is tried again within this time. For as long, too, is waited for what
/// becomes of a try, before there is another.
const LONGEST_BACK_OFF_MS: u64 = 10_000;

/// How much later than who saw a host fail the other workers try it: they read its bulletin at most two ticks after it
/// sent the try, with up to thirty workers.
pub const HEARD_LATER_MS: u64 = 150;

/// For how long a worker goes on to tell that a host has worked again: many ticks.
const TOLD_MS: u64 = 2_000;

/// How far another worker's clock may be ahead: they have the same, and it may be set back between two readings.
const AHEAD_MS: u64 = 1_000;

/// What is held against a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Why {
    /// No connection could be made.
    #[default]
    Connect,
    /// It broke off before its answer began.
    Reset,
    /// It did not answer in time.
    TimedOut,
    /// It answered 5xx.
    Error,
    /// Envoy tried it, and had to try another.
    Retried,
    /// It said 200, and that it generated nothing: an engine that shuts down.
    Aborts,
    /// It has requests and gives no byte, for much longer than they should take.
    Silent,
    /// It broke off amid its answer.
    Broken,
}

/// How much an answer proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sign {
    /// It came, and found no fault in the host.
    Answered,
    /// Something was generated.
    Generated,
    /// It came to its end, whatever it was.
    Ended,
    /// It was generated to its end.
    Finished,
}

/// Bits of Envoy's `response.flags` (source/common/stream_info, `CoreResponseFlag`; seen on 1.36 and 1.40).
mod flags {
    /// `UH`, `UO`, `DI`, `FI`, `RL`, `UAEX`, `RLSE`, `OM`, `DO`: Envoy's own doing, no host is to blame.
    pub const ENVOY: u64 = 0x2 | 0x80 | 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x200_0000 | 0x800_0000;
    /// `UT`: the route's time, or a try's, was up.
    pub const UPSTREAM_TIMEOUT: u64 = 0x4;
    /// `LR`, `UR`, `UC`, `UPE`: the connection or the stream broke.
    pub const RESET: u64 = 0x8 | 0x10 | 0x40 | 0x80_0000;
    /// `UF`: no connection.
    pub const CONNECT: u64 = 0x20;
    /// `DC`, `DPE`, `DR`: the client went away.
    pub const CLIENT: u64 = 0x4000 | 0x4_0000 | 0x1000_0000;
    /// `SI`: nothing came either way for long.
    pub const IDLE: u64 = 0x1_0000;
    /// `UMSDR`, `DT`: a longest duration was over.
    pub const DURATION: u64 = 0x8_0000 | 0x40_0000;
}

impl Why {
    const ALL: [Why; 8] = [
        Why::Connect,
        Why::Reset,
        Why::TimedOut,
        Why::Error,
        Why::Retried,
        Why::Aborts,
        Why::Silent,
        Why::Broken,
    ];

    /// What an answer that begins with `status` says against its host, by Envoy's flags. `asked` says that the request
    /// had been sent to its end.
    pub fn of_answer(status: u32, flags: u64, asked: bool) -> Option<Self> {
        let late = flags & (flags::UPSTREAM_TIMEOUT | flags::IDLE | flags::DURATION) != 0;
        match status {
            // Envoy gives up waiting with one or the other; while the client is still sending, it is the client's.
            408 | 504 if late => asked.then_some(Why::TimedOut),
            500..=599 if flags & flags::ENVOY != 0 => None,
            500..=599 if flags & flags::CONNECT != 0 => Some(Why::Connect),
            500..=599 if flags & flags::RESET != 0 => Some(Why::Reset),
            504 => Some(Why::TimedOut),
            500..=599 => Some(Why::Error),
            _ => None,
        }
    }

    /// What it says against the host that an answer stopped before its end, or never began. `began` says that something
    /// of it had come: then a longest duration was over, not the host's time.
    pub fn of_end(flags: u64, began: bool) -> Option<Self> {
        match flags {
            _ if flags & flags::CLIENT != 0 => None,
            _ if flags & flags::CONNECT != 0 => Some(Why::Connect),
            _ if flags & flags::RESET != 0 => Some(if began { Why::Broken } else { Why::Reset }),
            _ if flags & flags::IDLE != 0 => Some(Why::TimedOut),
            _ if flags & (flags::UPSTREAM_TIMEOUT | flags::DURATION) != 0 && !began => Some(Why::TimedOut),
            _ => None,
        }
    }

    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Connect => "no connection could be made",
            Why::Reset => "its last requests were broken off before they were answered",
            Why::TimedOut => "its last requests were not answered in time",
            Why::Error => "its last requests were answered 5xx",
            Why::Retried => "its last requests had to be sent to another",
            Why::Aborts => "it aborts what it is asked before it generates anything",
            Why::Silent => "it has requests and gives no byte",
            Why::Broken => "its last answers were broken off",
        }
    }

    /// As a byte of a shared value.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Reads such a byte.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// What ends it.
    fn ended_by(self) -> Sign {
        match self {
            Why::Connect | Why::Error | Why::Retried => Sign::Answered,
            Why::Reset | Why::TimedOut | Why::Silent => Sign::Generated,
            Why::Broken => Sign::Ended,
            Why::Aborts => Sign::Finished,
        }
    }
}

/// How a host's requests ended, as one worker saw it or several did. Times are milliseconds of the wall clock, 0 for
/// never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// Failures since it last worked.
    pub failures: u32,
    /// When the last of these was.
    pub failed_ms: u64,
    /// When its back-off ends, once there are enough of them.
    pub until_ms: u64,
    /// When it last worked.
    pub good_ms: u64,
    /// What the last failure was.
    pub why: Why,
}

impl Seen {
    /// What both know together. Failures add up until they suffice; from then on each worker goes on from the other's.
    fn with(self, other: Self) -> Self {
        let last = if other.failed_ms > self.failed_ms { other } else { self };
        let suffices = self.failures.max(other.failures) >= SUSPECT_AFTER;
        Self {
            failures: if suffices {
                self.failures.max(other.failures)
            } else {
                (self.failures + other.failures).min(SUSPECT_AFTER)
            },
            failed_ms: last.failed_ms,
            until_ms: self.until_ms.max(other.until_ms),
            good_ms: self.good_ms.max(other.good_ms),
            why: last.why,
        }
    }
}

/// What is known of how a host's requests ended: by this worker, and by the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Health {
    own: Seen,
    others: Seen,
    /// The stream that tries a host whose back-off is over.
    trying: Option<u32>,
    /// Until when the others are told that it works, though somebody has something against it.
    praised_until_ms: u64,
}

impl Health {
    /// What all workers have against it.
    pub fn standing(&self) -> Seen {
        self.own.with(self.others)
    }

    /// Whether anything is held against it.
    pub fn is_doubted(&self) -> bool {
        self.own.failures > 0 || self.others.failures > 0
    }

    /// Whether the host is left out. When the back-off is over one request tries it: until that one
    /// has ended ([`Health::tried_by`]), the others still stay away.
    pub fn is_suspect(&self, now_ms: u64) -> bool {
        let Seen { failures, until_ms, .. } = self.standing();
        // No back-off is longer: a clock that was set back must not make one.
        let left_ms = until_ms.saturating_sub(now_ms);
        failures >= SUSPECT_AFTER && left_ms > 0 && left_ms <= LONGEST_BACK_OFF_MS + HEARD_LATER_MS
    }

    /// A sign of life, at `now_ms`.
    pub fn answered(&mut self, sign: Sign, now_ms: u64) {
        let is_doubted = self.is_doubted();
        let enough = if is_doubted { self.standing().why.ended_by() } else { Sign::Generated };
        if sign >= enough {
            let praised_until_ms = if is_doubted { now_ms + TOLD_MS } else { self.praised_until_ms };
            let own = Seen { good_ms: now_ms, ..Seen::default() };
            *self = Self { own, praised_until_ms, ..Self::default() };
        } else if sign == Sign::Generated && self.standing().why == Why::Broken {
            self.try_next();
        }
    }

    /// A request failed that was sent at `sent_ms`.
    pub fn failed(&mut self, why: Why, sent_ms: u64, now_ms: u64) {
        let known = self.standing();
        let is_past = |at_ms: u64| sent_ms < at_ms && at_ms <= now_ms;
        let is_old = known.failures >= SUSPECT_AFTER && is_past(known.failed_ms);
        if is_old || (why == Why::TimedOut && is_past(known.good_ms)) {
            return;
        }
        let least = if why == Why::Silent { SUSPECT_AFTER } else { 0 };
        // What is known of the others counts on in theirs, until it suffices.
        let failures = if known.failures < SUSPECT_AFTER { self.own.failures } else { known.failures };
        let failures = failures.saturating_add(1).max(least);
        self.own = Seen { failures, failed_ms: now_ms, why, ..self.own };
        let failures = self.standing().failures;
        if let Some(doublings) = failures.checked_sub(SUSPECT_AFTER) {
            let back_off = (FIRST_BACK_OFF_MS << doublings.min(10)).min(LONGEST_BACK_OFF_MS);
            self.own = Seen { failures, until_ms: now_ms + back_off, ..self.own };
        }
        self.trying = None;
    }

    /// `stream` goes to it. If its back-off is over, nobody else follows until the outcome is known.
    pub fn tried_by(&mut self, stream: u32, now_ms: u64) {
        let known = self.standing();
        if known.failures >= SUSPECT_AFTER && !self.is_suspect(now_ms) {
            self.own = Seen { until_ms: now_ms + LONGEST_BACK_OFF_MS, good_ms: self.own.good_ms, ..known };
            self.trying = Some(stream);
        }
    }

    /// `stream` is over. If it was to try the host and has told nothing, somebody else may.
    pub fn ended(&mut self, stream: u32) {
        if self.trying == Some(stream) {
            self.try_next();
        }
    }

    /// Whoever comes next may try the host.
    fn try_next(&mut self) {
        self.trying = None;
        self.own.until_ms = 0;
        self.others.until_ms = 0;
    }

    /// What the other workers are to know.
    pub fn told(&self, now_ms: u64) -> Option<Seen> {
        (self.own.failures > 0 || now_ms < self.praised_until_ms).then_some(self.own)
    }

    /// What the others said before counts no more.
    pub fn forget_others(&mut self) {
        self.others = Seen::default();
    }

    /// Takes in when another worker saw it work.
    pub fn heard_good(&mut self, seen: &Seen, now_ms: u64) {
        if seen.good_ms <= now_ms + AHEAD_MS {
            self.others.good_ms = self.others.good_ms.max(seen.good_ms);
        }
        if self.own.failures > 0 && self.own.failed_ms <= self.others.good_ms {
            self.own = Seen { good_ms: self.own.good_ms, ..Seen::default() };
            self.trying = None;
        }
    }

    /// Takes in what another worker has against it, when all have said when they saw it work.
    pub fn heard_failures(&mut self, seen: &Seen, now_ms: u64) {
        let good_ms = self.own.good_ms.max(self.others.good_ms);
        if seen.failures == 0 || seen.failed_ms > now_ms + AHEAD_MS {
            return;
        }
        if seen.failed_ms <= self.own.good_ms {
            self.praised_until_ms = now_ms + TOLD_MS;
        } else if seen.failed_ms > good_ms {
            let until_ms = if seen.until_ms > 0 { seen.until_ms.saturating_add(HEARD_LATER_MS) } else { 0 };
            self.others = self.others.with(Seen { until_ms, ..*seen });
        }
    }
}
