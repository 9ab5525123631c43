//! What happens to one request: hold, feed, decide, resume, observe the answer, release.
//!
//! Whatever fails on the way, the request goes on by Envoy's own policy. Nothing of the body is changed,
//! and nothing of an answer is held back. In shadow mode nothing of the request is held either: it is decided while it
//! streams by, and left to Envoy's own policy.

use super::decided::{carry_out, shadow, Decided};
use super::host::{self, Buffer, Headers};
use super::reading::Reading;
use super::shed::{self, Shedding};
use super::stats::OrCount;
use super::worker::{now_ms, now_ns, Worker};
use crate::core::answer;
use crate::core::blocks::BlockHash;
use crate::core::config::{Config, Mode};
use crate::core::fleet::Slot;
use crate::core::health::{Sign, Why};
use crate::core::prompt::{classify, response_in_path, Api, Method, Outline, Unread};
use crate::core::route::{Decision, Reason};
use crate::core::router::Router;
use crate::core::shed::{priority, Overload};
use crate::core::usage::Tail;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use std::cell::RefCell;
use std::rc::Rc;

/// Body bytes that are copied out of Envoy at a time.
const SLICE: usize = 64 << 10;

/// A decision may fall at every multiple of this many body bytes, wherever the body was cut into pieces:
/// the same body gives the same decision. Small, so that a long body is not scanned for nothing; a copy of
/// a slice costs more than the scan of a step.
const STEP: usize = 4 << 10;

/// The least that a connection buffer holds in practice: Envoy Gateway's default, and more than any other's. Beyond it
/// Envoy may have stopped reading, and nothing would ever come that a decision could wait for.
const SMALL_BUFFER: usize = 32 << 10;

/// Prefix of our own headers.
const OWN_HEADERS: &[u8] = b"x-kvroute-";

/// One stream.
pub struct Filter {
    stream: u32,
    config: Rc<Config>,
    worker: Rc<RefCell<Worker>>,
    mode: Mode,
    named: Named,
    /// Body bytes that came while the headers were held.
    held_bytes: usize,
    /// Whether the request has a body, and whether it has come to its end.
    has_body: bool,
    asked: bool,
    reading: Option<Reading>,
    decided: Option<Decided>,
    /// When that was, in milliseconds of the wall clock.
    decided_ms: u64,
    response: Response,
    shedding: Shedding,
}

/// Digests of what names the conversation beside its prompt.
#[derive(Default)]
struct Named {
    session: Option<u64>,
    /// An answer that only the host has that gave it.
    response: Option<u64>,
}

/// What has been seen of the answer.
#[derive(Default)]
struct Response {
    head: Option<answer::Head>,
    first_byte: bool,
    /// Its status, once it has begun, and whether it has come to its end.
    status: Option<u32>,
    ended: bool,
    /// Whether it has been held against its host.
    failed: bool,
    /// Prompt bytes that the host that served was believed to hold.
    predicted_bytes: u64,
    tail: Option<Tail>,
}

/// What the request's headers say.
struct Head {
    kind: Result<Api, Unread>,
    length: Option<u64>,
    has_body: bool,
    named: Named,
    /// How important it is, where requests are shed by that.
    priority: i64,
}

impl HttpContext for Filter {
    fn on_http_request_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        let head = self.read_head(end_of_stream);
        (self.has_body, self.asked) = (head.has_body, end_of_stream);
        self.mode = self.draw_mode();
        if self.mode == Mode::Off {
            self.worker.borrow().stats.off.add(1);
            return Action::Continue;
        }
        if self.sheds(&head) {
            return Action::Pause;
        }
        self.named = head.named;
        let api = match head.kind {
            Ok(api) if self.mode == Mode::Shadow || self.worker.borrow().may_hold() => api,
            Ok(_) => return self.pass(Unread::NotHeld, head.has_body),
            Err(why) => return self.pass(why, head.has_body),
        };
        self.reading = Some(Reading::new(api, head.length, &self.config.prompt));
        if self.mode == Mode::Shadow {
            return Action::Continue;
        }
        self.worker.borrow_mut().held(self.stream);
        Action::Pause
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        let action = self.body(size, end_of_stream);
        if end_of_stream {
            self.asked();
        }
        action
    }

    fn on_http_request_trailers(&mut self, _count: usize) -> Action {
        let action = self.shed_at(true).unwrap_or_else(|| {
            self.end_body();
            Action::Continue
        });
        self.asked();
        action
    }

    fn on_http_response_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        self.response.ended = end_of_stream;
        self.served();
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.response.ended |= end_of_stream;
        if size > 0 && self.mode != Mode::Off {
            self.answer_bytes(size);
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _count: usize) -> Action {
        self.response.ended = true;
        Action::Continue
    }

    fn on_log(&mut self) {
        self.judge_end();
        self.release();
    }
}

impl Context for Filter {}

/// Releases what a stream holds even where Envoy did not log it.
impl Drop for Filter {
    fn drop(&mut self) {
        self.release();
    }
}

impl Named {
    /// Decides for a request whose prompt is not known.
    fn decide(&self, router: &Router, why: Unread, has_body: bool, now_ms: u64) -> Decision {
        match (self.session.filter(|_| has_body), self.response) {
            (None, None) => router.decide_unread(why, has_body, now_ms),
            (session, response) => {
                router.decide_session(why, &router.session(session, response, has_body), now_ms)
            }
        }
    }
}

impl Filter {
    /// A stream that has not begun.
    pub fn new(stream: u32, config: Rc<Config>, worker: Rc<RefCell<Worker>>) -> Self {
        Self {
            stream,
            config,
            worker,
            mode: Mode::default(),
            named: Named::default(),
            held_bytes: 0,
            has_body: false,
            asked: false,
            reading: None,
            decided: None,
            decided_ms: 0,
            response: Response::default(),
            shedding: Shedding::No,
        }
    }

    /// Whether the request's headers are held.
    fn is_held(&self) -> bool {
        self.mode == Mode::On && self.is_undecided()
    }

    /// Whether the body is being read for a decision.
    fn is_undecided(&self) -> bool {
        self.reading.is_some() && self.decided.is_none() && !self.was_rescued()
    }

    fn was_rescued(&self) -> bool {
        self.worker.borrow().router.has(self.stream)
    }

    /// Clients know neither of the numbers that decide.
    fn draw_mode(&self) -> Mode {
        let lot = BlockHash(self.worker.borrow().id).under(u64::from(self.stream)).0;
        self.config.mode.draw(lot)
    }

    /// Reads the headers and removes what a client must not send: Envoy would honour a destination, and
    /// others would believe our own.
    fn read_head(&self, end_of_stream: bool) -> Head {
        let destination = self.config.destination_header.as_str();
        let headers = host::headers(Headers::Request).or_count();
        let Some(headers) = headers.filter(|headers| !headers.is_empty()) else {
            host::remove_header(Headers::Request, destination).or_count();
            return Head {
                kind: Err(Unread::Path),
                length: None,
                has_body: !end_of_stream,
                named: Named::default(),
                priority: 0,
            };
        };
        let mut request = Method {
            method: b"",
            path: b"",
            content_type: None,
            content_encoding: None,
            upgrade: false,
            end_of_stream,
        };
        let mut length = None;
        let mut session = None;
        let priority_header = self.config.shed.as_ref().map(|shed| shed.priority_header.as_bytes());
        let mut stated = None;
        for (name, value) in headers.iter() {
            if priority_header == Some(name) {
                stated.get_or_insert(priority(value));
            }
            match name {
                b":method" => request.method = value,
                b":path" => request.path = value,
                b"content-type" => request.content_type = Some(value),
                b"content-encoding" => request.content_encoding = Some(value),
                b"content-length" => {
                    length = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok())
                }
                b"upgrade" => request.upgrade = true,
                _ if name == destination.as_bytes() || name.starts_with(OWN_HEADERS) => {
                    if let Ok(name) = std::str::from_utf8(name) {
                        host::remove_header(Headers::Request, name).or_count();
                    }
                }
                _ => session = session.or_else(|| self.config.session.in_header(name, value)),
            }
        }
        let named = Named { session, response: response_in_path(request.path) };
        let kind = classify(&request, &self.config.prompt.paths);
        Head { kind, length, has_body: !end_of_stream, named, priority: stated.unwrap_or(0) }
    }

    /// Turns a request away if no host has room for one as unimportant. Answers whether it is, now or at its end.
    fn sheds(&mut self, head: &Head) -> bool {
        let Some(overload) = self.overload(head) else { return false };
        if self.mode == Mode::Shadow {
            self.worker.borrow().stats.shadow_shed.add(1);
            return false;
        }
        let is_short =
            head.length.is_some_and(|bytes| bytes <= self.config.prompt.hold_bytes.min(SMALL_BUFFER) as u64);
        if is_short && self.worker.borrow().holding_works() {
            self.shedding = Shedding::AtEnd(overload);
            return true;
        }
        self.turn_away(overload)
    }

    /// Whether a request finds no room. One without a body asks for nothing to be computed, and an upgrade is no request.
    fn overload(&self, head: &Head) -> Option<Overload> {
        let bounds = self.config.shed.as_ref().filter(|bounds| head.priority < bounds.below_priority)?;
        if !head.has_body || head.kind == Err(Unread::Upgrade) {
            return None;
        }
        let now_ns = now_ns();
        let mut worker = self.worker.borrow_mut();
        worker.look_at_gauges(now_ns);
        worker.router.overload(bounds, now_ns / 1_000_000)
    }

    fn turn_away(&mut self, overload: Overload) -> bool {
        let is_answered = shed::answer(overload, &self.config).is_some();
        self.shedding = if is_answered { Shedding::Answered } else { Shedding::No };
        self.worker.borrow().stats.shed.add(u64::from(is_answered));
        is_answered
    }

    /// More has come of a request that is turned away. Nothing if it is not.
    fn shed_at(&mut self, end: bool) -> Option<Action> {
        match self.shedding {
            Shedding::No => None,
            Shedding::AtEnd(overload) if end => Some(if self.turn_away(overload) {
                Action::Pause
            } else {
                // Where Envoy refuses to answer, some host must.
                self.pass(Unread::NotHeld, true)
            }),
            Shedding::AtEnd(_) => Some(Action::StopIterationAndWatermark),
            Shedding::Answered => Some(Action::Pause),
        }
    }

    /// A piece of the body comes.
    fn body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if let Some(action) = self.shed_at(end_of_stream) {
            return action;
        }
        if self.is_held() {
            self.worker.borrow_mut().body_came();
            self.held_bytes = self.held_bytes.saturating_add(size);
        }
        self.read_body(size, end_of_stream);
        if self.is_held() && self.held_bytes >= self.config.prompt.hold_bytes {
            // The body could not be read as far as it has come; it must not pile up all the same.
            self.decide();
        }
        if !self.is_held() {
            return Action::Continue;
        }
        if self.held_bytes > SMALL_BUFFER {
            self.worker.borrow_mut().waits_for_more(self.stream);
        }
        // Not `Pause`: the next read may bring as much as the whole buffer holds, and Envoy would answer 413.
        Action::StopIterationAndWatermark
    }

    /// The request's body has come to its end: its engine has it, unless it is turned away.
    fn asked(&mut self) {
        self.asked = true;
        self.worker.borrow_mut().asked(self.stream);
    }

    /// Sends a request on whose prompt is not known: by what names its conversation, or by load.
    fn pass(&mut self, why: Unread, has_body: bool) -> Action {
        let now_ns = now_ns();
        let decision = {
            let mut worker = self.worker.borrow_mut();
            worker.look_at_gauges(now_ns);
            self.named.decide(&worker.router, why, has_body, now_ns / 1_000_000)
        };
        self.carry_out(decision, 0, now_ns / 1_000_000);
        Action::Continue
    }

    /// Feeds what is new in the body, decides as soon as that is possible, and goes on learning the prompt
    /// while the body streams by.
    fn read_body(&mut self, size: usize, end_of_stream: bool) {
        if self.reading.is_none() {
            return;
        }
        // The buffer has only the newest piece.
        let mut at = 0;
        while at < size && self.wants_more() {
            let Some(slice) = host::buffer(Buffer::RequestBody, at, SLICE.min(size - at)).or_count() else {
                break;
            };
            if slice.is_empty() {
                break;
            }
            at += slice.len();
            self.feed(&slice);
        }
        if end_of_stream {
            self.end_body();
        }
    }

    /// Whether reading on can still teach anything.
    fn wants_more(&self) -> bool {
        let limit = self.config.prompt.max_bytes as u64;
        self.reading.as_ref().is_some_and(|reading| {
            self.is_undecided() || (!reading.prompt.is_read() && reading.prompt.bytes() < limit)
        })
    }

    /// Feeds a slice of the body, in steps that end at fixed places of the body.
    fn feed(&mut self, slice: &[u8]) {
        let mut rest = slice;
        while !rest.is_empty() {
            let hold_bytes = self.config.prompt.hold_bytes;
            let is_undecided = self.is_undecided();
            let Some(reading) = &mut self.reading else {
                return;
            };
            let mut step = STEP - reading.fed % STEP;
            if is_undecided {
                step = step.min(hold_bytes.saturating_sub(reading.fed)).max(1);
            }
            let (piece, after) = rest.split_at(step.min(rest.len()));
            reading.prompt.feed(piece);
            reading.fed += piece.len();
            rest = after;
            let fed = reading.fed;
            if is_undecided && (fed >= hold_bytes || (fed % STEP == 0 && self.is_settled())) {
                self.decide();
            }
        }
    }

    /// Walks on, and answers whether the decision is certain by now.
    fn is_settled(&mut self) -> bool {
        let Some(reading) = &mut self.reading else { return false };
        let router = &self.worker.borrow().router;
        router.advance(&mut reading.walk, &reading.prompt, false);
        reading.is_settled(router)
    }

    /// The body has ended: what is undecided is decided, and the prompt is remembered to its end.
    fn end_body(&mut self) {
        let undecided = self.is_undecided();
        let Some(reading) = &mut self.reading else {
            return;
        };
        if std::mem::replace(&mut reading.ended, true) {
            return;
        }
        reading.prompt.finish();
        self.named.session = self.named.session.or(reading.prompt.session());
        self.named.response = reading.prompt.previous_response();
        let (broken, unread, streams) =
            (reading.prompt.is_broken(), reading.prompt.unread(), reading.prompt.wants_stream());
        if broken {
            self.worker.borrow().stats.broken_bodies.add(1);
        }
        match unread {
            Some(why) if undecided => {
                self.reading = None;
                self.pass(why, true);
            }
            _ if undecided => self.decide(),
            _ => {
                self.correct();
                self.remember();
            }
        }
        if !streams {
            let now_ms = if undecided { self.decided_ms } else { now_ms() };
            self.worker.borrow_mut().router.will_not_stream(self.stream, now_ms);
        }
    }

    /// Decides by what has been read of the prompt.
    fn decide(&mut self) {
        let now_ns = now_ns();
        let now_ms = now_ns / 1_000_000;
        let Some(reading) = &mut self.reading else {
            return;
        };
        let whole = reading.is_whole();
        reading.walked_whole = whole;
        let bytes = reading.prompt_bytes();
        let decision = {
            let mut worker = self.worker.borrow_mut();
            worker.router.advance(&mut reading.walk, &reading.prompt, whole);
            worker.look_at_gauges(now_ns);
            let mut decision = worker.router.decide(&reading.walk, &reading.prompt, bytes, now_ms);
            // Of a conversation that is kept by an engine, only the last turn is in the request.
            if reading.prompt.previous_response().is_some() && decision.reason != Reason::Pinned {
                let session = self.named.session.or(reading.prompt.session());
                let named = Named { session, response: None };
                if session.is_some() {
                    decision = named.decide(&worker.router, Unread::NoPrompt, true, now_ms);
                }
            }
            worker.look_at_mark(&mut decision);
            decision
        };
        self.carry_out(decision, bytes, now_ms);
        self.remember();
    }

    /// Sets the header and takes the request into the books, unless it is only to be judged.
    fn carry_out(&mut self, decision: Decision, prompt_bytes: u64, now_ms: u64) {
        let mut worker = self.worker.borrow_mut();
        self.decided = Some(if self.mode == Mode::Shadow {
            shadow(decision, prompt_bytes, &worker, now_ms)
        } else {
            worker.not_held(self.stream);
            worker.stats.prompt_bytes.add(prompt_bytes);
            worker.stats.matched_bytes.add(decision.matched_bytes);
            carry_out(self.stream, &decision, prompt_bytes, &self.config, &mut worker, now_ms)
        });
        self.decided_ms = now_ms;
    }

    /// A prompt that was decided by its head has been read to its end: brings its host's books up to date.
    fn correct(&mut self) {
        let Some(reading) = self.reading.as_mut().filter(|reading| !reading.walked_whole) else { return };
        let mut worker = self.worker.borrow_mut();
        worker.router.advance_further(&mut reading.walk, &reading.prompt, &reading.remembered);
        let change = worker.router.correct(self.stream, &reading.walk, &reading.prompt);
        worker.apply(change);
    }

    /// Remembers what has become known of the prompt for the host that has it.
    fn remember(&mut self) {
        let slot = self.decided.as_ref().and_then(|decided| decided.slot);
        let (Some(slot), Some(reading)) = (slot, &mut self.reading) else {
            return;
        };
        if reading.remembered.is_whole() {
            return;
        }
        let whole = reading.is_whole();
        self.worker.borrow_mut().router.remember(slot, &reading.prompt, &mut reading.remembered, whole);
    }

    /// The answer begins, or Envoy's in its place: who served, and how well?
    fn served(&mut self) {
        if self.decided.is_none() {
            return;
        }
        let status = host::header(Headers::Response, ":status").or_count().flatten();
        let status = status.and_then(|digits| std::str::from_utf8(&digits).ok()?.parse().ok()).unwrap_or(0);
        self.response.status = Some(status);
        // A status that is not known says nothing of the host.
        let failed = !(100..500).contains(&status);
        let suspicious = failed || status == 408;
        let flags = if suspicious { number_property(&["response", "flags"]).unwrap_or(0) } else { 0 };
        if let Some(address) = upstream_address() {
            self.served_by(address, status, Why::of_answer(status, flags, self.asked));
        }
        self.remember();
        let Some(decided) = &self.decided else { return };
        if self.config.debug_headers {
            let matched = format!("{}/{}", decided.matched_bytes, decided.prompt_bytes);
            host::set_header(Headers::Response, "x-kvroute-host", &decided.address).or_count();
            host::set_header(Headers::Response, "x-kvroute-reason", &decided.reason).or_count();
            host::set_header(Headers::Response, "x-kvroute-matched", &matched).or_count();
        }
        if let Some(reading) = self.reading.as_ref().filter(|_| !failed) {
            self.response.tail = Some(Tail::default());
            let head_tells = matches!(reading.api, Api::Responses | Api::Generate);
            self.response.head = head_tells.then(answer::Head::default);
        }
    }

    /// Brings the books of the host that served up to date, and learns how it is: it answered well, found fault with the
    /// request, or is to blame.
    fn served_by(&mut self, address: String, status: u32, blame: Option<Why>) {
        let well = (200..300).contains(&status);
        let Some(decided) = &mut self.decided else { return };
        let mut worker = self.worker.borrow_mut();
        let slot = worker.router.fleet().by_address(&address).map(|host| host.slot);
        if let Some(shadow) = decided.shadow.take() {
            // Without an answer it is not known who holds what.
            if let Some(slot) = slot.filter(|_| well) {
                shadow.settle(self.stream, slot, self.reading.as_ref(), &mut worker, now_ms());
                decided.slot = Some(slot);
                if self.asked {
                    worker.asked(self.stream);
                }
            }
        } else if address != decided.address {
            worker.stats.moved.add(1);
            for tried in tried_before(&decided.named, slot) {
                worker.failed(*tried, Why::Retried, self.decided_ms);
            }
            if let Some(slot) = slot {
                let prompt = self.reading.as_ref().map(|reading| (&reading.prompt, reading.is_whole()));
                let changes = worker.router.moved(self.stream, slot, prompt);
                changes.into_iter().flatten().for_each(|change| worker.apply(Some(change)));
                decided.slot = Some(slot);
                decided.address = address;
            }
        }
        let Some(slot) = slot else { return };
        if let Some(name) = self.named.session.filter(|_| well) {
            worker.router.has_session(slot, name);
        }
        match blame {
            Some(why) => {
                self.response.failed = true;
                worker.failed(slot, why, self.decided_ms);
            }
            // That there is nothing more proves as much as a first byte.
            None if well && self.response.ended && self.has_body => worker.answered(slot, Sign::Generated),
            None if (100..500).contains(&status) => worker.answered(slot, Sign::Answered),
            None => {}
        }
        if let Some(reading) = self.reading.as_ref().filter(|_| well) {
            self.response.predicted_bytes = reading.walk.matched(slot);
            worker.stats.match_predicted.record(self.response.predicted_bytes, reading.prompt_bytes());
        }
    }

    /// Bytes of the answer come by.
    fn answer_bytes(&mut self, size: usize) {
        let wanted = size.min(Tail::WANTED);
        let tail_of = |_: &Tail| host::buffer(Buffer::ResponseBody, size - wanted, wanted).or_count();
        let end = self.response.tail.as_ref().and_then(tail_of);
        if !self.response.first_byte && self.is_generated(end.as_deref()) {
            self.response.first_byte = true;
            let mut worker = self.worker.borrow_mut();
            let change = worker.router.first_byte(self.stream, now_ms());
            worker.apply(change);
            if let Some(slot) = self.generated_by() {
                worker.answered(slot, Sign::Generated);
            }
        }
        if let Some(slot) = self.generated_by().filter(|_| self.response.first_byte) {
            self.worker.borrow_mut().router.gave_byte(slot);
        }
        self.answer_head(size);
        if let (Some(tail), Some(end)) = (&mut self.response.tail, &end) {
            tail.push(end);
        }
    }

    /// The host whose engine generates the answer: what is asked without a body, and what is found wrong, needs none.
    fn generated_by(&self) -> Option<Slot> {
        let is_generated = self.has_body && matches!(self.response.status, Some(200..=299));
        self.decided.as_ref().filter(|_| is_generated)?.slot
    }

    /// The stream is over: what does it say of the host that it did not end, or how?
    fn judge_end(&mut self) {
        let Some(slot) =
            self.decided.as_ref().filter(|_| !self.response.failed).and_then(|decided| decided.slot)
        else {
            return;
        };
        let mut worker = self.worker.borrow_mut();
        if self.response.ended {
            match &self.response.tail {
                _ if self.generated_by().is_none() => {}
                Some(tail) if tail.is_aborted() => worker.failed(slot, Why::Aborts, self.decided_ms),
                Some(_) => worker.answered(slot, Sign::Finished),
                None => worker.answered(slot, Sign::Ended),
            }
            return;
        }
        let flags = number_property(&["response", "flags"]).unwrap_or(0);
        if let Some(why) = Why::of_end(flags, self.response.first_byte) {
            self.response.failed = true;
            let tried = if self.response.status.is_none() { upstream_address() } else { None };
            let tried = tried.and_then(|address| Some(worker.router.fleet().by_address(&address)?.slot));
            worker.failed(tried.unwrap_or(slot), why, self.decided_ms);
        }
    }

    /// Whether the engine has generated something when these bytes of its answer come.
    fn is_generated(&self, piece: Option<&[u8]>) -> bool {
        match (&self.reading, piece) {
            (Some(reading), Some(piece))
                if reading.api == Api::Responses && reading.prompt.wants_stream() =>
            {
                answer::has_output(piece)
            }
            _ => true,
        }
    }

    /// The beginning of the answer: how it is called, and in some APIs its usage.
    fn answer_head(&mut self, size: usize) {
        let Some(head) = self.response.head.as_mut().filter(|head| !head.is_full()) else { return };
        let wanted = size.min(answer::Head::WANTED);
        if let Some(bytes) = host::buffer(Buffer::ResponseBody, 0, wanted).or_count() {
            head.push(&bytes);
        }
        let is_stored = self.reading.as_ref().is_some_and(|reading| reading.api == Api::Responses);
        let slot = self.decided.as_ref().and_then(|decided| decided.slot);
        if let (true, Some(slot), Some(id)) = (is_stored, slot, head.response_id()) {
            self.worker.borrow_mut().router.answered_by(slot, id);
            self.response.head = None;
        }
    }

    /// The stream has ended: gives back what it held, and learns from what the engine told. A second call
    /// finds nothing.
    fn release(&mut self) {
        let mut worker = self.worker.borrow_mut();
        worker.not_held(self.stream);
        let usage = self.response.tail.take().and_then(|tail| tail.usage());
        let usage = usage.or_else(|| self.response.head.take()?.usage());
        if let (Some(usage), Some(reading)) = (&usage, &self.reading) {
            let predicted_bytes = self.response.predicted_bytes;
            worker.router.learn(self.stream, &reading.prompt, reading.ended, predicted_bytes, usage);
        }
        let change = worker.router.end(self.stream);
        worker.apply(change);
        let (Some(usage), Some(reading)) = (usage, &self.reading) else { return };
        worker.stats.told_prompt_tokens.add(usage.prompt_tokens);
        if let Some(cached) = usage.cached_tokens {
            let predicted = worker.router.tokens(self.response.predicted_bytes, &reading.prompt);
            worker.stats.told_cached_tokens.add(cached);
            worker.stats.predicted_cached_tokens.add(predicted);
            worker.stats.match_actual.record(cached, usage.prompt_tokens);
        }
    }
}

/// The hosts that Envoy tried before the one that served: those that were named before it. None at the first attempt:
/// Envoy does not know them then.
fn tried_before(named: &[Slot], served: Option<Slot>) -> &[Slot] {
    if number_property(&["upstream", "request_attempt_count"]) == Some(1) {
        return &[];
    }
    let before = named.iter().position(|named| Some(*named) == served).unwrap_or(named.len());
    named.get(..before).unwrap_or(&[])
}

/// The address of the host that served, or was tried last.
fn upstream_address() -> Option<String> {
    String::from_utf8(host::property(&["upstream", "address"]).or_count().flatten()?).ok()
}

/// A property that is a whole number of eight bytes.
fn number_property(path: &[&str]) -> Option<u64> {
    let bytes = host::property(path).or_count().flatten()?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
