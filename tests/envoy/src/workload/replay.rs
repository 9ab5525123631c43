//! Sends a plan: conversations start when it says, whether or not earlier ones have been answered.

use super::plan::Plan;
use crate::chat::{Chat, Reply, Usage};
use crate::client::Pool;
use crate::policy::ANCHOR_HEADER;
use anyhow::Result;
use hyper::header::HeaderValue;
use hyper::StatusCode;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What came of one request.
#[derive(Debug, Clone)]
pub struct Record {
    /// Which conversation of the plan it belongs to.
    pub conversation: usize,
    /// The first turn of a conversation is 0.
    pub turn: usize,
    /// When it was sent, from the start of the run.
    pub sent: Duration,
    /// From the moment it should have been sent to the first token; None if it failed.
    pub ttft: Option<Duration>,
    /// From that moment to the end of the answer.
    pub elapsed: Duration,
    /// The engine that answered, or had begun to when it was cut.
    pub engine: String,
    /// What that engine computed.
    pub usage: Usage,
    /// What it answered; empty if the request failed.
    pub answer: String,
    /// What went wrong, if anything did.
    pub failure: Option<Failure>,
}

/// How a request can fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The answer is an error, or not a whole answer; its status and the start of its body.
    Answered(StatusCode, String),
    /// The answer had begun and was cut, or there was no answer.
    Cut(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Answered(status, body) => write!(f, "{status} {body}"),
            Failure::Cut(why) => f.write_str(why),
        }
    }
}

/// Where and how a plan is sent.
#[derive(Debug)]
pub struct Replay {
    plan: Arc<Plan>,
    pool: Pool,
    limit: Semaphore,
    done: AtomicUsize,
}

/// Which request of a run is sent.
#[derive(Clone, Copy)]
struct Place {
    start: Instant,
    conversation: usize,
    turn: usize,
}

impl Replay {
    /// Will send `plan` to `address`, at most `limit` requests at the same time. Requests beyond that
    /// wait, and their waiting counts.
    pub fn new(plan: &Arc<Plan>, address: SocketAddr, limit: usize) -> Arc<Self> {
        Arc::new(Self {
            plan: Arc::clone(plan),
            pool: Pool::new(address),
            limit: Semaphore::new(limit),
            done: AtomicUsize::new(0),
        })
    }

    /// How many requests are done, well or not.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// Sends the plan and waits for all answers.
    pub async fn run(self: &Arc<Self>) -> Vec<Record> {
        let start = Instant::now();
        let mut conversations = JoinSet::new();
        for index in 0..self.plan.conversations.len() {
            let replay = Arc::clone(self);
            conversations.spawn(async move {
                tokio::time::sleep_until(start + replay.plan.conversations[index].start).await;
                replay.converse(start, index).await
            });
        }
        conversations.join_all().await.into_iter().flatten().collect()
    }

    /// Each turn carries all that was said before it, the engine's answers too.
    async fn converse(&self, start: Instant, index: usize) -> Vec<Record> {
        let conversation = &self.plan.conversations[index];
        let anchor = HeaderValue::from(self.plan.anchor(conversation));
        let mut records: Vec<Record> = Vec::new();
        let mut chat = self.plan.chat(conversation);
        for (turn, said) in conversation.turns.iter().enumerate() {
            tokio::time::sleep(said.think).await;
            chat = chat.user(&said.question);
            let place = Place { start, conversation: index, turn };
            let record = self.ask(place, &anchor, &chat).await;
            self.done.fetch_add(1, Ordering::Relaxed);
            chat = chat.assistant(&record.answer);
            records.push(record);
        }
        records
    }

    async fn ask(&self, place: Place, anchor: &HeaderValue, chat: &Chat) -> Record {
        let due = Instant::now();
        let permit = self.limit.acquire().await;
        let waited = due.elapsed();
        let mut engine = String::new();
        let answer = self.exchange(anchor, chat, &mut engine).await;
        drop(permit);
        let mut record = Record {
            conversation: place.conversation,
            turn: place.turn,
            sent: due.duration_since(place.start) + waited,
            ttft: None,
            elapsed: due.elapsed(),
            engine,
            usage: Usage::default(),
            answer: String::new(),
            failure: None,
        };
        match answer {
            Ok(reply) if reply.is_complete() => {
                record.ttft = reply.ttft.map(|ttft| waited + ttft);
                record.usage = reply.usage.unwrap_or_default();
                record.answer = reply.text;
            }
            Ok(reply) => {
                let body = String::from_utf8_lossy(&reply.body).chars().take(200).collect();
                record.failure = Some(Failure::Answered(reply.status, body));
            }
            Err(error) => record.failure = Some(Failure::Cut(format!("{error:#}"))),
        }
        record
    }

    /// Says which engine answers as soon as that is known.
    async fn exchange(&self, anchor: &HeaderValue, chat: &Chat, engine: &mut String) -> Result<Reply> {
        let mut connection = self.pool.take().await?;
        let mut request = chat.request();
        request.headers_mut().insert(ANCHOR_HEADER, anchor.clone());
        let sent = std::time::Instant::now();
        let response = connection.send(request).await?;
        let named = response.headers().get("x-mock-engine").and_then(|name| name.to_str().ok());
        *engine = named.unwrap_or_default().to_owned();
        let reply = Reply::read(response, sent).await?;
        self.pool.put_back(connection);
        Ok(reply)
    }
}
